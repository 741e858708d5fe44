package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/compatibility"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// cluster is a whole kube-scheduler with the configuration that is shipped, over fakes.
type cluster struct {
	t         *testing.T
	client    *fake.Clientset
	server    *podServer
	allocator *fakeAllocator
}

// shippedConfig is the scheduler's configuration as users apply it, with the scheduler's own defaults.
func shippedConfig(t testing.TB) *config.KubeSchedulerConfiguration {
	t.Helper()
	manifest, err := tenantwebhook.Manifests.ReadFile("manifests/scheduler-config.yaml")
	require.NoError(t, err)
	var configMap corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict(manifest, &configMap))
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configMap.Data["scheduler-config.yaml"]), nil, nil)
	require.NoError(t, err)
	decoded, ok := object.(*config.KubeSchedulerConfiguration)
	require.True(t, ok)
	return decoded
}

func startCluster(t *testing.T, nodes ...*corev1.Node) *cluster {
	t.Helper()
	return startClusterWithPause(t, pause, nodes...)
}

func startClusterWithPause(t *testing.T, pause time.Duration, nodes ...*corev1.Node) *cluster {
	t.Helper()
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	objects := clusterObjects()
	for _, node := range nodes {
		objects = append(objects, node)
	}
	c := &cluster{t: t, client: fake.NewClientset(objects...)}
	c.server = serveBindings(c.client)
	serveDeletions(c.client)
	nads := newNADs()
	c.allocator = newFakeAllocator(nads)
	factory := func(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		args, err := parseArgs(object)
		if err != nil {
			return nil, err
		}
		args.Breaker = BreakerArgs{Failures: 2, Pause: metav1.Duration{Duration: pause}}
		return newPlugin(ctx, args, handle, c.allocator, attachments{client: nads}, clock.RealClock{})
	}
	informers := scheduler.NewInformerFactory(c.client, 0, nil)
	sched, err := scheduler.New(ctx, c.client, informers, nil,
		func(string) events.EventRecorderLogger { return &events.FakeRecorder{} },
		scheduler.WithProfiles(shippedConfig(t).Profiles...),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{Name: factory}),
		scheduler.WithPodInitialBackoffSeconds(1),
		scheduler.WithPodMaxBackoffSeconds(1),
	)
	require.NoError(t, err)
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	require.NoError(t, sched.WaitForHandlersSync(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		sched.Run(ctx)
	}()
	t.Cleanup(func() { <-done }) // the test's context has ended by then
	return c
}

// serveDeletions does for a fake clientset what the API server does with a pod that has finalizers: it stays, marked.
func serveDeletions(client *fake.Clientset) {
	client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion, ok := action.(clienttesting.DeleteAction)
		if !ok {
			return true, nil, errors.New("not a deletion")
		}
		object, err := client.Tracker().Get(podsResource, deletion.GetNamespace(), deletion.GetName())
		if err != nil {
			return true, nil, err
		}
		stored, ok := object.(*corev1.Pod)
		if !ok || len(stored.Finalizers) == 0 {
			return false, nil, nil
		}
		pod := stored.DeepCopy()
		deleting(pod)
		return true, pod, client.Tracker().Update(podsResource, pod, pod.Namespace)
	})
}

func (c *cluster) create(pods ...*corev1.Pod) {
	c.t.Helper()
	for _, pod := range pods {
		_, err := c.client.CoreV1().Pods(pod.Namespace).Create(c.t.Context(), pod, metav1.CreateOptions{})
		require.NoError(c.t, err)
	}
}

// remove ends a pod for good, as the release controller does.
func (c *cluster) remove(pod *corev1.Pod) {
	c.t.Helper()
	require.NoError(c.t, c.client.Tracker().Delete(podsResource, pod.Namespace, pod.Name))
}

func (c *cluster) pod(pod *corev1.Pod) *corev1.Pod { return c.server.get(c.t, pod) }

func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	require.Eventually(c.t, condition, soon, 5*time.Millisecond, what)
}

func (c *cluster) waitBound(pods ...*corev1.Pod) {
	c.t.Helper()
	for _, pod := range pods {
		c.eventually(pod.Name+" is bound", func() bool { return c.pod(pod).Spec.NodeName != "" })
	}
}

// waitRefused waits until the scheduler has said that a pod does not fit, and returns its words.
func (c *cluster) waitRefused(pod *corev1.Pod) string {
	c.t.Helper()
	var message string
	c.eventually(pod.Name+" is refused", func() bool {
		for _, condition := range c.pod(pod).Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
				message = condition.Message
				return true
			}
		}
		return false
	})
	return message
}

// TestSchedulerBindsPodsWhereDevicesAreFree: cases S31, S39 of docs/cases.md.
func TestSchedulerBindsPodsWhereDevicesAreFree(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 2), newNode(node2, vfPool, 3), newNode("no-devices"))
	var pods []*corev1.Pod
	for i := range 5 {
		pods = append(pods, vfPod(fmt.Sprintf("p-%d", i), 1))
	}
	plain := plainPod(teamA, "plain")
	c.create(pods...)
	c.create(plain)
	c.waitBound(append(pods, plain)...)

	perNode := map[string]int{}
	for _, pod := range pods {
		stored := c.pod(pod)
		perNode[stored.Spec.NodeName]++
		require.Equal(t, "team-a/"+pod.Name+"-0@rdma0", stored.Annotations[rdma.NetworksAnnotation])
		require.Equal(t, stored.Spec.NodeName, c.allocator.holds(pod.UID).Node)
	}
	require.Equal(t, map[string]int{node1: 2, node2: 3}, perNode)
	require.NotContains(t, c.pod(plain).Annotations, rdma.NetworksAnnotation)
}

// TestSchedulerPlacesAPodWhenAnotherEnds: cases S24 of docs/cases.md.
func TestSchedulerPlacesAPodWhenAnotherEnds(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 1), newNode("no-devices"))
	holder, waiting := vfPod("holder", 1), vfPod("waiting", 1)
	c.create(holder)
	c.waitBound(holder)
	c.create(waiting)
	require.Contains(t, c.waitRefused(waiting), "Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 1, requested 1, need 1)")

	// Its deletion frees nothing yet: its containers still run.
	require.NoError(t, c.client.CoreV1().Pods(teamA).Delete(t.Context(), holder.Name, metav1.DeleteOptions{}))
	bystander := vfPod("bystander", 1)
	c.create(bystander)
	c.waitRefused(bystander)
	require.Empty(t, c.pod(waiting).Spec.NodeName)
	require.Nil(t, c.allocator.holds(waiting.UID))

	c.remove(holder)
	c.eventually("one of them is bound", func() bool {
		return c.pod(waiting).Spec.NodeName == node1 || c.pod(bystander).Spec.NodeName == node1
	})
}

func TestSchedulerPlacesAPodWhenANodeOffersDevices(t *testing.T) {
	c := startCluster(t, newNode(node1))
	waiting := vfPod("waiting", 1)
	c.create(waiting)
	require.Contains(t, c.waitRefused(waiting), "allocatable 0, requested 0, need 1")
	_, err := c.client.CoreV1().Nodes().Update(t.Context(), newNode(node1, vfPool, 1), metav1.UpdateOptions{})
	require.NoError(t, err)
	c.waitBound(waiting)
}

// TestSchedulerPreempts: cases S14, S27 of docs/cases.md.
func TestSchedulerPreempts(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 1), newNode("no-devices"))
	low := vfPod("low", 1, withPriority(1))
	c.create(low)
	c.waitBound(low)

	high := vfPod("high", 1, withPriority(100))
	c.create(high)
	c.eventually("high is nominated", func() bool { return c.pod(high).Status.NominatedNodeName == node1 })
	c.eventually("low is being deleted", func() bool { return c.pod(low).DeletionTimestamp != nil })
	require.Empty(t, c.pod(high).Spec.NodeName, "the victim's containers still run")

	// The device that the victim gives back is promised: a pod of lower priority must not take it.
	rival := vfPod("rival", 1, withPriority(50))
	c.create(rival)
	c.waitRefused(rival)
	c.remove(low)
	c.waitBound(high)
	require.Equal(t, node1, c.pod(high).Spec.NodeName)
	require.Empty(t, c.pod(rival).Spec.NodeName)
	require.Nil(t, c.allocator.holds(rival.UID))
}

// onPort makes a pod need a port of its node, which candidates are not chosen by.
func onPort(pod *corev1.Pod) {
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 4791, ContainerPort: 4791, Protocol: corev1.ProtocolUDP}}
}

// freeButPort have one free device each, and a pod of the lowest priority that holds the port.
func freeButPort(count int) (nodes []*corev1.Node, holders []*corev1.Pod) {
	nodes = freeNodes(count)
	for _, node := range nodes {
		holders = append(holders, plainPod(teamA, "port-"+node.Name, onNode(node.Name), onPort, withPriority(-10)))
	}
	return nodes, holders
}

// largeCluster has full nodes, and two with a free device whose port is taken.
func largeCluster(t *testing.T, holderPriority, portPriority int32) *cluster {
	t.Helper()
	nodes, holders := fullNodes(minCandidateNodes, holderPriority)
	others, ports := freeButPort(2)
	for _, pod := range ports {
		withPriority(portPriority)(pod)
	}
	c := startCluster(t, append(nodes, others...)...)
	c.create(append(holders, ports...)...)
	return c
}

func TestSchedulerPreemptsOnANodeThatIsNoCandidate(t *testing.T) {
	c := largeCluster(t, 1, 1000)
	high := vfPod("high", 1, withPriority(100), onPort)
	c.create(high)
	require.Contains(t, c.waitRefused(high), "of the nodes with free devices 2 were looked at")
	c.eventually("high is nominated", func() bool { return strings.HasPrefix(c.pod(high).Status.NominatedNodeName, "full-") })
}

func TestSchedulerMustNotPreemptHoldersOfTheSamePriority(t *testing.T) {
	c := largeCluster(t, 100, 100)
	pod := vfPod("p", 1, withPriority(100), onPort)
	c.create(pod)
	c.eventually("all nodes were looked at", func() bool {
		message := c.waitRefused(pod)
		return strings.Contains(message, "2 node(s) didn't have free ports") && strings.Contains(message, "100 Insufficient mellanox.com/mlnx_sriov_rdma")
	})
	require.Empty(t, c.pod(pod).Status.NominatedNodeName)

	// A device that becomes free brings the pod back.
	ended, _ := fullNodes(1, 0)
	c.remove(vfPod("holder-0", 1))
	c.waitBound(pod)
	require.Equal(t, ended[0].Name, c.pod(pod).Spec.NodeName)
}

// TestSchedulerMustNotPreemptForWantOfLooking: all candidates fail, on each of them the pod could preempt, and a node
// that was left out is free.
func TestSchedulerMustNotPreemptForWantOfLooking(t *testing.T) {
	nodes, holders := freeButPort(sampleSize + 20)
	c := startCluster(t, nodes...)
	c.create(holders...)
	good := newNode("good", vfPool, 1)
	_, err := c.client.CoreV1().Nodes().Create(t.Context(), good, metav1.CreateOptions{})
	require.NoError(t, err)
	onGood := func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: good.Name} }
	first := plainPod(teamA, "first", onGood)
	c.create(first)
	c.waitBound(first) // the scheduler knows all nodes, this one as the last

	pod := vfPod("p", 1, withPriority(100), onPort)
	c.create(pod)
	c.waitBound(pod)
	require.Equal(t, good.Name, c.pod(pod).Spec.NodeName)
	require.Contains(t, c.waitRefused(pod), fmt.Sprintf("of the nodes with free devices %d were looked at", sampleSize), "it was missed at first")
	for _, holder := range holders {
		require.Nil(t, c.pod(holder).DeletionTimestamp)
	}
}

func TestSchedulerPlacesPodsOnTheLastFreeNodesOfALargeCluster(t *testing.T) {
	nodes, holders := fullNodes(minCandidateNodes, 0)
	c := startCluster(t, append(nodes, newNode(node1, vfPool, 1), newNode(node2, vfPool, 1))...)
	c.create(holders...)
	first, second, third := vfPod("first", 1), vfPod("second", 1), vfPod("third", 1)
	c.create(first, second)
	c.waitBound(first, second)
	require.ElementsMatch(t, []string{node1, node2}, []string{c.pod(first).Spec.NodeName, c.pod(second).Spec.NodeName})
	c.create(third)
	require.Contains(t, c.waitRefused(third), "Insufficient mellanox.com/mlnx_sriov_rdma (allocatable 1, requested 1, need 1)")
}

// TestSchedulerMustNotPreemptForATenantControllerThatIsAway: cases S26 of docs/cases.md.
func TestSchedulerMustNotPreemptForATenantControllerThatIsAway(t *testing.T) {
	c := startClusterWithPause(t, time.Hour, newNode(node1, vfPool, 2))
	low := vfPod("low", 1, withPriority(1))
	c.create(low)
	c.waitBound(low)

	// One device is left, on which the breaker opens.
	c.allocator.set(func(a *fakeAllocator) { a.fail = always(unavailable()) })
	before := openBreakers(t, scopeAll)
	c.create(vfPod("first", 1, withPriority(1)))
	c.eventually("the breaker opens", func() bool { return openBreakers(t, scopeAll) > before })
	high := vfPod("high", 2, withPriority(100))
	c.create(high)
	require.Contains(t, c.waitRefused(high), "the tenant-controller does not answer")
	require.Nil(t, c.pod(low).DeletionTimestamp)
	require.Empty(t, c.pod(high).Status.NominatedNodeName)
}

// TestSchedulerWakesPodsWhenTheTenantControllerIsBack: cases S23 of docs/cases.md.
func TestSchedulerWakesPodsWhenTheTenantControllerIsBack(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 8))
	c.allocator.set(func(a *fakeAllocator) { a.fail = always(unavailable()) })
	var pods []*corev1.Pod
	for i := range 6 {
		pods = append(pods, vfPod(fmt.Sprintf("p-%d", i), 1))
	}
	c.create(pods...)
	plain := plainPod(teamA, "plain")
	c.create(plain)
	c.waitBound(plain)
	c.eventually("the breaker opens", func() bool { return len(c.allocator.asked()) >= 2 })

	c.allocator.set(func(a *fakeAllocator) { a.fail = nil })
	c.waitBound(pods...)
}

// TestSchedulerPlacesAGroupWhenTheMemberOnAnotherPoolIsDeleted: kube-scheduler's queue does not hear of pods that end
// without ever having had a node.
func TestSchedulerPlacesAGroupWhenTheMemberOnAnotherPoolIsDeleted(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 2, sharedPool, 2))
	member := labelled("jobset.sigs.k8s.io/jobset-name", "job")
	stays := vfPod("stays", 1, member)
	goes := injected(plainPod(teamA, "goes"), rdma.Assignment{{Type: rdma.VF, Pool: sharedPool, Count: 1}}, member)
	gated := func(pod *corev1.Pod) { pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "hold"}} }
	gated(goes) // or it would be bound before the other is there
	c.create(goes, stays)
	require.Contains(t, c.waitRefused(stays), "is split over two pools")
	require.NoError(t, c.client.CoreV1().Pods(teamA).Delete(t.Context(), goes.Name, metav1.DeleteOptions{}))
	c.waitBound(stays)
}

// TestSchedulerIsNotHeldUpByPodsThatFitNowhere: most pods that wait when the tenant-controller is back have no node, and
// nothing is learnt from them.
func TestSchedulerIsNotHeldUpByPodsThatFitNowhere(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 4))
	c.allocator.set(func(a *fakeAllocator) { a.fail = always(unavailable()) })
	before := openBreakers(t, scopeAll)
	fit := []*corev1.Pod{vfPod("fits-0", 1), vfPod("fits-1", 1), vfPod("fits-2", 1)}
	c.create(fit...)
	c.eventually("the breaker opens", func() bool { return openBreakers(t, scopeAll) > before })
	for i := range 400 {
		c.create(vfPod(fmt.Sprintf("large-%d", i), 8))
	}
	c.allocator.set(func(a *fakeAllocator) { a.fail = nil })
	c.waitBound(fit...)
}

// TestSchedulerLetsAHighPriorityPodBeTheProbe: where all devices are taken, only a pod that preempts can have a node.
func TestSchedulerLetsAHighPriorityPodBeTheProbe(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 2))
	low, lost := vfPod("low", 2, withPriority(1)), vfPod("lost", 1, withPriority(1))
	c.create(low)
	c.waitBound(low)
	c.allocator.set(func(a *fakeAllocator) { a.fail = always(unavailable()) })
	before := openBreakers(t, scopeAll)
	require.NoError(t, c.client.Tracker().Add(newNode(node2, vfPool, 1)))
	c.create(lost)
	c.eventually("the breaker opens", func() bool { return openBreakers(t, scopeAll) > before })
	require.NoError(t, c.client.Tracker().Delete(podsResource, lost.Namespace, lost.Name))
	require.NoError(t, c.client.Tracker().Delete(nodesResource, "", node2))
	c.allocator.set(func(a *fakeAllocator) { a.fail = nil }) // not before, or lost would close the breaker
	high := vfPod("high", 2, withPriority(100))
	c.create(high)
	c.eventually("low is being deleted", func() bool { return c.pod(low).DeletionTimestamp != nil })
	c.remove(low)
	c.waitBound(high)
}

func TestSchedulerWritesToPods(t *testing.T) {
	gates := options.NewOptions().ComponentGlobalsRegistry.FeatureGateFor(compatibility.DefaultKubeComponent)
	for _, expectation := range []bool{true, false} {
		t.Run(fmt.Sprintf("with NominatedNodeNameForExpectation=%v", expectation), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, gates, features.NominatedNodeNameForExpectation, expectation)
			c := startCluster(t, newNode(node1, vfPool, 1))
			plain := plainPod(teamA, "plain")
			c.create(plain)
			c.waitBound(plain)
			require.Equal(t, []string{"create ", oneWrite}, podWrites(c.client), "a plain pod must not cost a PATCH")

			c.client.ClearActions()
			pod := vfPod("p", 1)
			c.create(pod)
			c.waitBound(pod)
			want := []string{"create ", oneWrite}
			if expectation {
				want = []string{"create ", "patch status", oneWrite}
			}
			require.Equal(t, want, podWrites(c.client))
			require.Equal(t, "team-a/p-0@rdma0", c.pod(pod).Annotations[rdma.NetworksAnnotation])
		})
	}
}

// TestSchedulerBindsAPodWhoseAnswerWasLostOnce: cases W77, S9 of docs/cases.md.
func TestSchedulerBindsAPodWhoseAnswerWasLostOnce(t *testing.T) {
	c := startCluster(t, newNode(node1, vfPool, 1))
	c.server.lose = apierrors.NewTimeoutError("lost", 1)
	pod := vfPod("p", 1)
	c.create(pod)
	c.waitBound(pod)
	require.Len(t, slices.DeleteFunc(podWrites(c.client), func(w string) bool { return w != oneWrite }), 1)
	require.Len(t, c.allocator.asked(), 1)
}
