package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	testingclock "k8s.io/utils/clock/testing"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/pools/poolconfig"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

const (
	vfPool     = corev1.ResourceName("mellanox.com/mlnx_sriov_rdma")
	pfPool     = corev1.ResourceName("mellanox.com/mlnx_pf_rdma")
	sharedPool = corev1.ResourceName("rdma/hca_shared_devices_a")
	// retiredPool was taken out of the configuration while pods hold it.
	retiredPool = corev1.ResourceName("mellanox.com/retired")

	// The namespace team-a is tenant acme's; team-b has no label and is a tenant by its own name.
	teamA, teamB = "team-a", "team-b"
	acme         = "acme"
	clusterUID   = "cluster-uid"
	node1, node2 = "node-1", "node-2"
)

func TestMain(m *testing.M) {
	schedmetrics.Register()
	m.Run()
}

// fixture is a scheduler framework with the plugin in it, over an API server, a tenant-controller and a clock that are
// fakes with state.
type fixture struct {
	*TenantNetwork
	t         *testing.T
	framework framework.Framework
	client    *fake.Clientset
	server    *podServer
	nads      *metadatafake.FakeMetadataClient
	allocator *fakeAllocator
	clock     *testingclock.FakeClock
	events    chan string
	informers informers.SharedInformerFactory
	nominator *internalqueue.PriorityQueue
	activated *activator
}

// setup is what differs between fixtures. The zero value is a cluster of two nodes with two VFs each and the profile
// that is shipped.
type setup struct {
	nodes []*corev1.Node
	// placed are pods that hold devices when the scheduling starts.
	placed []*corev1.Pod
	// queued are pods that the scheduling queue knows.
	queued  []runtime.Object
	args    Args
	plugins []tf.RegisterPluginFunc
	options []frameworkruntime.Option
}

func newFixture(t *testing.T, s setup) *fixture {
	t.Helper()
	f := &fixture{
		t:         t,
		client:    fake.NewClientset(clusterObjects()...),
		nads:      newNADs(),
		clock:     testingclock.NewFakeClock(time.Unix(1_000_000, 0)),
		events:    make(chan string, 100),
		activated: &activator{},
	}
	ctx := f.context()
	f.server = serveBindings(f.client)
	f.allocator = newFakeAllocator(f.nads)
	f.informers = informers.NewSharedInformerFactory(f.client, 0)
	f.nominator = internalqueue.NewTestQueueWithObjects(ctx, (&queuesort.PrioritySort{}).Less, s.queued)
	if s.nodes == nil {
		s.nodes = []*corev1.Node{newNode(node1, vfPool, 2), newNode(node2, vfPool, 2)}
	}
	if s.plugins == nil {
		s.plugins = []tf.RegisterPluginFunc{ours("PreFilter", "Filter", "PostFilter", "Score", "Reserve", "PreBind", "Bind"), defaultBinder}
	}
	plugins := []tf.RegisterPluginFunc{tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New)}
	for _, register := range s.plugins {
		plugins = append(plugins, f.provided(s.args, register))
	}
	options := append([]frameworkruntime.Option{
		frameworkruntime.WithClientSet(f.client),
		frameworkruntime.WithInformerFactory(f.informers),
		frameworkruntime.WithEventRecorder(&events.FakeRecorder{Events: f.events}),
		frameworkruntime.WithSnapshotSharedLister(internalcache.NewSnapshot(s.placed, s.nodes)),
		frameworkruntime.WithPodNominator(f.nominator),
		frameworkruntime.WithPodActivator(f.activated),
		frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()),
		frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()),
	}, s.options...)
	var err error
	f.framework, err = tf.NewFramework(ctx, plugins, rdma.SchedulerName, options...)
	require.NoError(t, err)
	f.namespace(teamA, acme)
	f.namespace(teamB, "")
	f.see(s.placed...)
	for _, node := range s.nodes {
		f.seeNode(node)
	}
	// The tests of PreBind and Bind skip Filter, and ask for any pool there.
	f.seeNode(newNode(node1, vfPool, 2, pfPool, 2, sharedPool, 2, retiredPool, 2))
	return f
}

// seeNode lets the informer show the node.
func (f *fixture) seeNode(node *corev1.Node) {
	f.t.Helper()
	require.NoError(f.t, f.informers.Core().V1().Nodes().Informer().GetIndexer().Update(node))
}

// context ends with the test, and keeps what the framework logs to itself.
func (f *fixture) context() context.Context {
	return klog.NewContext(f.t.Context(), klog.Logger{})
}

// provided makes our plugin's factory hand out one with the fixture's fakes.
func (f *fixture) provided(args Args, register tf.RegisterPluginFunc) tf.RegisterPluginFunc {
	return func(registry *frameworkruntime.Registry, profile *config.KubeSchedulerProfile) {
		register(registry, profile)
		if _, ok := (*registry)[Name]; !ok {
			return
		}
		(*registry)[Name] = func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			args.setDefaults(func(string) string { return "" })
			plugin, err := newPlugin(ctx, &args, handle, f.allocator, attachments{client: f.nads}, f.clock)
			f.TenantNetwork = plugin
			return plugin, err
		}
	}
}

// ours enables the plugin at the extension points.
func ours(points ...string) tf.RegisterPluginFunc {
	return tf.RegisterPluginAsExtensions(Name, nil, points...)
}

var defaultBinder = tf.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New)

// namespace lets the informer show a namespace, which the API server has.
func (f *fixture) namespace(name, tenantName string) {
	f.t.Helper()
	require.NoError(f.t, f.informers.Core().V1().Namespaces().Informer().GetIndexer().Add(newNamespace(name, tenantName)))
}

// see lets the informer, and only it, show the pods as they are.
func (f *fixture) see(pods ...*corev1.Pod) {
	f.t.Helper()
	for _, pod := range pods {
		require.NoError(f.t, f.informers.Core().V1().Pods().Informer().GetIndexer().Update(pod))
	}
}

// unsee lets the informer forget a pod.
func (f *fixture) unsee(pod *corev1.Pod) {
	f.t.Helper()
	require.NoError(f.t, f.informers.Core().V1().Pods().Informer().GetIndexer().Delete(pod))
}

// create puts pods on the API server and into the informer.
func (f *fixture) create(pods ...*corev1.Pod) {
	f.t.Helper()
	for _, pod := range pods {
		require.NoError(f.t, f.client.Tracker().Add(pod))
	}
	f.see(pods...)
}

// stored is the pod as the API server has it.
func (f *fixture) stored(pod *corev1.Pod) *corev1.Pod {
	f.t.Helper()
	return f.server.get(f.t, pod)
}

// store changes the pod on the API server alone.
func (f *fixture) store(pod *corev1.Pod) {
	f.t.Helper()
	require.NoError(f.t, f.client.Tracker().Update(podsResource, pod, pod.Namespace))
}

// preFilter runs the real framework's PreFilter.
func (f *fixture) preFilter(pod *corev1.Pod) (fwk.CycleState, *fwk.Status) {
	f.t.Helper()
	state := framework.NewCycleState()
	_, status, _ := f.framework.RunPreFilterPlugins(f.context(), state, pod)
	return state, status
}

// passed runs PreFilter, which must let the pod pass.
func (f *fixture) passed(pod *corev1.Pod) fwk.CycleState {
	f.t.Helper()
	state, status := f.preFilter(pod)
	requireSuccess(f.t, status)
	return state
}

func (f *fixture) nodeInfo(name string) fwk.NodeInfo {
	f.t.Helper()
	info, err := f.framework.SnapshotSharedLister().NodeInfos().Get(name)
	require.NoError(f.t, err)
	return info
}

func (f *fixture) filter(pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	f.t.Helper()
	return f.framework.RunFilterPlugins(f.context(), f.passed(pod), pod, node)
}

// prepared runs PreFilter and PreBind for node1, and returns PreBind's status.
func (f *fixture) prepared(pod *corev1.Pod) (fwk.CycleState, *fwk.Status) {
	f.t.Helper()
	state := f.passed(pod)
	return state, f.framework.RunPreBindPlugins(f.context(), state, assumed(pod, node1), node1)
}

// bound runs PreFilter, PreBind and Bind for node1, and returns the first status that is no success.
func (f *fixture) bound(pod *corev1.Pod) *fwk.Status {
	f.t.Helper()
	state, status := f.prepared(pod)
	if !status.IsSuccess() {
		return status
	}
	return f.framework.RunBindPlugins(f.context(), state, assumed(pod, node1), node1)
}

// assumed is the pod as the scheduler hands it to the binding cycle.
func assumed(pod *corev1.Pod, node string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	return pod
}

func requireSuccess(t *testing.T, status *fwk.Status) {
	t.Helper()
	require.True(t, status.IsSuccess(), "status %v: %s", status.Code(), status.Message())
}

func requireFault(t *testing.T, status *fwk.Status, text string) {
	t.Helper()
	require.Equal(t, fwk.Error.String(), status.Code().String(), status.Message())
	require.ErrorContains(t, status.AsError(), text)
}

// clusterObjects are what the plugin reads at its start.
func clusterObjects() []runtime.Object {
	return []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: clusterUID}},
		newNamespace(teamA, acme),
		newNamespace(teamB, ""),
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: poolconfig.DefaultNamespace, Name: poolconfig.DefaultName},
			Data:       map[string]string{pools.PoolsKey: fmt.Sprintf("%s type=vf\n%s type=vf\n%s type=pf\n", vfPool, sharedPool, pfPool)},
		},
	}
}

func newNamespace(name, tenantName string) *corev1.Namespace {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if tenantName != "" {
		namespace.Labels = map[string]string{rdma.TenantLabel: tenantName}
	}
	return namespace
}

// newNode returns a Ready node with pairs of pool and number of devices.
func newNode(name string, pairs ...any) *corev1.Node {
	offers := devices(pairs...)
	offers[corev1.ResourceCPU] = resource.MustParse("64")
	offers[corev1.ResourceMemory] = resource.MustParse("256Gi")
	offers[corev1.ResourcePods] = resource.MustParse("110")
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Capacity: offers, Allocatable: offers.DeepCopy(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

func devices(pairs ...any) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i+1 < len(pairs); i += 2 {
		pool, okPool := pairs[i].(corev1.ResourceName)
		count, okCount := pairs[i+1].(int)
		if !okPool || !okCount {
			panic("pairs of pool and number of devices")
		}
		list[pool] = *resource.NewQuantity(int64(count), resource.DecimalSI)
	}
	return list
}

// plainPod is a pod that the webhook never saw.
func plainPod(namespace, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: podUID(namespace + "-" + name)},
		Spec: corev1.PodSpec{SchedulerName: rdma.SchedulerName,
			Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

// vfPod is a pod of namespace team-a as admission leaves it, with VFs of the first pool.
func vfPod(name string, count int64, change ...func(*corev1.Pod)) *corev1.Pod {
	return injected(plainPod(teamA, name), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: count}}, change...)
}

// injected makes a pod look as admission leaves it.
func injected(pod *corev1.Pod, assignment rdma.Assignment, change ...func(*corev1.Pod)) *corev1.Pod {
	requests := corev1.ResourceList{}
	for _, pool := range assignment.Pools() {
		requests[pool] = *resource.NewQuantity(assignment.Total(pool), resource.DecimalSI)
	}
	pod.Finalizers = []string{rdma.Finalizer}
	pod.Annotations = assignment.Annotations()
	for _, e := range assignment {
		pod.Annotations[e.Type.Annotation()] = strconv.FormatInt(e.Count, 10)
	}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: requests.DeepCopy()}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[key] = value
	}
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels = map[string]string{key: value} }
}

func onNode(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = node }
}

func withPriority(priority int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Priority = &priority }
}

func never(pod *corev1.Pod) {
	pod.Spec.PreemptionPolicy = new(corev1.PreemptNever)
}

func deleting(pod *corev1.Pod) {
	pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_000_000, 0)}
}

// activator stands for the scheduling queue, and remembers which pods were woken.
type activator struct {
	mu    sync.Mutex
	woken []string
}

func (a *activator) Activate(_ klog.Logger, pods map[string]*corev1.Pod) { a.wake(pods) }

func (a *activator) wake(pods map[string]*corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pod := range pods {
		a.woken = append(a.woken, pod.Name)
	}
}

// names returns the pods woken so far.
func (a *activator) names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string{}, a.woken...)
}

var (
	podsResource  = corev1.SchemeGroupVersion.WithResource("pods")
	nodesResource = corev1.SchemeGroupVersion.WithResource("nodes")
)

// podServer does for a fake clientset what the API server does with pods/binding.
type podServer struct {
	client *fake.Clientset
	mu     sync.Mutex
	// refuse fails a binding that is not made; lose makes it and loses the answer; unread fails reads of pods.
	refuse, lose, unread error
	// before runs ahead of each binding.
	before func()
}

func serveBindings(client *fake.Clientset) *podServer {
	s := &podServer{client: client}
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.unread != nil, nil, s.unread
	})
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok || create.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding, ok := create.GetObject().(*corev1.Binding)
		if !ok {
			return true, nil, errors.New("not a binding")
		}
		return true, binding, s.bind(binding)
	})
	return s
}

func (s *podServer) bind(binding *corev1.Binding) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		s.before()
	}
	if s.refuse != nil {
		return s.refuse
	}
	object, err := s.client.Tracker().Get(podsResource, binding.Namespace, binding.Name)
	if err != nil {
		return err
	}
	stored, ok := object.(*corev1.Pod)
	if !ok {
		return errors.New("not a pod")
	}
	pod := stored.DeepCopy()
	if reason := refusal(pod, binding); reason != "" {
		return apierrors.NewConflict(podsResource.GroupResource(), binding.Name, errors.New(reason))
	}
	pod.Spec.NodeName = binding.Target.Name
	pod.Status.NominatedNodeName = ""
	if pod.Annotations == nil {
		pod.Annotations = binding.Annotations
	}
	maps.Copy(pod.Annotations, binding.Annotations)
	if err := s.client.Tracker().Update(podsResource, pod, pod.Namespace); err != nil {
		return err
	}
	return s.lose
}

func refusal(pod *corev1.Pod, binding *corev1.Binding) string {
	switch {
	case pod.UID != binding.UID:
		return "the UID in the precondition does not match"
	case pod.DeletionTimestamp != nil:
		return "pod is being deleted, cannot be assigned to a host"
	case pod.Spec.NodeName != "":
		return "pod is already assigned to node " + pod.Spec.NodeName
	}
	return ""
}

func (s *podServer) get(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	object, err := s.client.Tracker().Get(podsResource, pod.Namespace, pod.Name)
	require.NoError(t, err)
	stored, ok := object.(*corev1.Pod)
	require.True(t, ok)
	return stored
}

// calls lists what was asked of the API server, but for the watch of the pool configuration.
func (f *fixture) calls() []string {
	calls := []string{}
	for _, action := range f.client.Actions() {
		if action.GetResource().Resource != "configmaps" {
			calls = append(calls, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	return calls
}

// podWrites lists every write to a pod that was asked for, as verb and subresource.
func podWrites(client *fake.Clientset) []string {
	writes := []string{}
	for _, action := range client.Actions() {
		switch action.GetVerb() {
		case "get", "list", "watch":
			continue
		}
		if action.GetResource().Resource == "pods" {
			writes = append(writes, action.GetVerb()+" "+action.GetSubresource())
		}
	}
	return writes
}

func newNADs() *metadatafake.FakeMetadataClient {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		panic(err)
	}
	return metadatafake.NewSimpleMetadataClient(scheme)
}

func newNAD(namespace, name string, uid podUID, pool corev1.ResourceName) *metav1.PartialObjectMetadata {
	nad := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "k8s.cni.cncf.io/v1", Kind: "NetworkAttachmentDefinition"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
	}
	if uid != "" {
		nad.Labels[rdma.PodUIDLabel] = string(uid)
	}
	if pool != "" {
		nad.Annotations[rdma.ResourceNameAnnotation] = string(pool)
	}
	return nad
}

func (f *fixture) createNAD(nad *metav1.PartialObjectMetadata) {
	f.t.Helper()
	require.NoError(f.t, f.nads.Tracker().Create(nadResource, nad, nad.Namespace))
}

// fakeAllocator is a tenant-controller with state: idempotent by pod UID, its networks exist before its answer.
type fakeAllocator struct {
	nads *metadatafake.FakeMetadataClient

	mu          sync.Mutex
	allocations map[podUID]*tenant.Allocation
	asks        []tenant.EnsureRequest
	// fail returns the error of the next call, or nil.
	fail func(tenant.EnsureRequest) error
	// change spoils an answer; what is stored stays right.
	change func(*tenant.Allocation)
	// during runs while a call is under way.
	during func()
}

var _ Allocator = &fakeAllocator{}

func newFakeAllocator(nads *metadatafake.FakeMetadataClient) *fakeAllocator {
	return &fakeAllocator{nads: nads, allocations: map[podUID]*tenant.Allocation{}}
}

func (a *fakeAllocator) Ensure(_ context.Context, uid podUID, ask tenant.EnsureRequest) (*tenant.Allocation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asks = append(a.asks, ask)
	if a.during != nil {
		a.during()
	}
	if a.fail != nil {
		if err := a.fail(ask); err != nil {
			return nil, err
		}
	}
	allocation, ok := a.allocations[uid]
	if !ok {
		allocation = a.make(uid, ask)
		a.allocations[uid] = allocation
	}
	if ask.Generation != 0 && ask.Generation != allocation.Generation {
		current := *allocation
		return nil, &tenant.Error{Op: "ensure", Status: 409, Reason: tenant.ReasonStaleGeneration, Current: &current}
	}
	if allocation.Node != ask.Node {
		allocation.Node = ask.Node
		allocation.Generation++
	}
	answer := *allocation
	answer.Networks = append([]tenant.Network{}, allocation.Networks...)
	if a.change != nil {
		a.change(&answer)
	}
	return &answer, nil
}

func (a *fakeAllocator) make(uid podUID, ask tenant.EnsureRequest) *tenant.Allocation {
	allocation := &tenant.Allocation{PodUID: uid, Cluster: ask.Cluster, Namespace: ask.Namespace, Pod: ask.Pod, Tenant: ask.Tenant,
		Node: ask.Node, Requests: ask.Requests, Generation: 1}
	for _, request := range ask.Requests {
		for range request.Count {
			name := fmt.Sprintf("%s-%d", ask.Pod, len(allocation.Networks))
			allocation.Networks = append(allocation.Networks, tenant.Network{Namespace: ask.Namespace, Name: name, Pool: request.Pool})
			fed := corev1.ResourceName(request.Pool)
			if fed == sharedPool {
				fed = ""
			}
			if err := a.nads.Tracker().Create(nadResource, newNAD(ask.Namespace, name, uid, fed), ask.Namespace); err != nil {
				panic(err)
			}
		}
	}
	return allocation
}

// asked returns all calls so far.
func (a *fakeAllocator) asked() []tenant.EnsureRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]tenant.EnsureRequest{}, a.asks...)
}

// holds returns the allocation of a pod, or nil.
func (a *fakeAllocator) holds(uid podUID) *tenant.Allocation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.allocations[uid]
}

// set changes the allocator while calls may be under way.
func (a *fakeAllocator) set(f func(*fakeAllocator)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a)
}

// Errors as the tenant-controller's client returns them.
func unavailable() error {
	return &tenant.Error{Op: "ensure", Status: 503, Reason: tenant.ReasonUnavailable}
}

func refused(detail string) error {
	return &tenant.Error{Op: "ensure", Status: 403, Reason: "QuotaExceeded", Detail: detail}
}

// always fails every call with the error, or none if it is nil.
func always(err error) func(tenant.EnsureRequest) error {
	return func(tenant.EnsureRequest) error { return err }
}

// once fails the first call.
func once(err error) func(tenant.EnsureRequest) error {
	return func(tenant.EnsureRequest) error {
		failed := err
		err = nil
		return failed
	}
}
