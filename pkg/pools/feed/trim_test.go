package feed

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

func drawResources(t *rapid.T, label string) corev1.ResourceList {
	return rapid.MapOfN(rapid.SampledFrom([]corev1.ResourceName{poolA, poolB, "cpu", "memory", "hugepages-2Mi"}),
		rapid.Map(rapid.Int64Range(0, 3), func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }), 0, 3).Draw(t, label)
}

func drawContainers(t *rapid.T, label string) []corev1.Container {
	var all []corev1.Container
	for i := range rapid.IntRange(0, 3).Draw(t, label) {
		c := corev1.Container{Name: fmt.Sprint(label, i), Image: "image", Env: []corev1.EnvVar{{Name: "X", Value: "y"}}}
		c.Resources.Requests, c.Resources.Limits = drawResources(t, "requests"), drawResources(t, "limits")
		c.RestartPolicy = rapid.SampledFrom([]*corev1.ContainerRestartPolicy{nil, new(corev1.ContainerRestartPolicyAlways), new(corev1.ContainerRestartPolicyOnFailure)}).Draw(t, "restart")
		all = append(all, c)
	}
	return all
}

func drawStatuses(t *rapid.T, label string) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	for i := range rapid.IntRange(0, 3).Draw(t, label) {
		s := corev1.ContainerStatus{Name: fmt.Sprint(label, i), Image: "image"}
		switch rapid.IntRange(0, 3).Draw(t, "state") {
		case 0:
			s.State.Running = &corev1.ContainerStateRunning{}
		case 1:
			s.State.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.Unix(rapid.Int64Range(0, 5000).Draw(t, "end"), 0)}
		case 2:
			s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.Unix(9000, 0)}
		}
		all = append(all, s)
	}
	return all
}

func drawPod(t *rapid.T) *corev1.Pod {
	p := pod("p", "uid", rapid.SampledFrom([]string{"", "n1"}).Draw(t, "node"), poolA, 1)
	p.ResourceVersion, p.GenerateName, p.ManagedFields = "7", "p-", []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	p.Annotations[rdma.ResourceTypeAnnotation] = rapid.SampledFrom([]string{"vf", "vf,pf", "x"}).Draw(t, "types")
	p.Annotations[rdma.ResourcePoolAnnotation] = rapid.SampledFrom([]string{"a.com/vf", "b.com/vf", "a.com/vf,b.com/vf", "a.com/vf,a.com/vf"}).Draw(t, "pools")
	p.Annotations[rdma.ResourceCountAnnotation] = rapid.SampledFrom([]string{"1", "2", "1,2", "1,1"}).Draw(t, "counts")
	p.Annotations[rdma.AdmissionIDAnnotation] = "id"
	p.Annotations[rdma.NetworksAnnotation] = rapid.SampledFrom([]string{"", "[null]", "ns/a@rdma0", "users,ns/a@rdma0,ns/b@rdma1",
		`[{"name":"users","cni-args":{"x":"user's"}},{"name":"a.b","namespace":"ns","interface":"rdma0"}]`}).Draw(t, "networks")
	p.Annotations["kubectl.kubernetes.io/last-applied-configuration"], p.Annotations[rdma.VFAnnotation] = "long", "1"
	p.Annotations[rdma.Domain+"unknown"] = "long"
	if rapid.IntRange(0, 4).Draw(t, "unannotated") == 0 {
		p.Annotations = nil
	}
	if rapid.Bool().Draw(t, "mirror") {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.MirrorPodAnnotationKey, "hash")
	}
	p.CreationTimestamp = metav1.Unix(rapid.Int64Range(0, 5000).Draw(t, "creation"), 0)
	p.Spec.SchedulerName = rapid.SampledFrom([]string{rdma.SchedulerName, rdma.DefaultSchedulerName}).Draw(t, "scheduler")
	p.Labels = rapid.MapOf(rapid.SampledFrom([]string{"gang", "app"}), rapid.SampledFrom([]string{"", "x"})).Draw(t, "labels")
	p.Finalizers = rapid.SampledFrom([][]string{nil, {rdma.Finalizer}, {"a/b", rdma.Finalizer, "c/d"}, {"a/b"}}).Draw(t, "finalizers")
	if rapid.Bool().Draw(t, "deleting") {
		p.DeletionTimestamp = new(metav1.Unix(rapid.Int64Range(0, 5000).Draw(t, "deletion"), 0))
	}
	p.Spec.InitContainers = drawContainers(t, "init")
	if rapid.Bool().Draw(t, "odd") {
		p.Spec.Containers = drawContainers(t, "app")
	}
	if rapid.Bool().Draw(t, "podLevel") {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: drawResources(t, "requests"), Limits: drawResources(t, "limits")}
		p.Spec.Overhead = drawResources(t, "overhead")
	}
	if rapid.Bool().Draw(t, "gated") {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("g")}
	}
	p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "phase")
	for _, condition := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodReady} {
		if rapid.Bool().Draw(t, string(condition)) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: condition,
				Status: rapid.SampledFrom([]corev1.ConditionStatus{"True", "False", "Unknown"}).Draw(t, "status")})
		}
	}
	p.Status.Reason = rapid.SampledFrom([]string{"", "Evicted", "UnexpectedAdmissionError"}).Draw(t, "reason")
	p.Status.Message = "why"
	p.Status.InitContainerStatuses, p.Status.ContainerStatuses = drawStatuses(t, "init"), drawStatuses(t, "app")
	return p
}

// releaseInput is what package release decides and acts by.
func releaseInput(p *corev1.Pod) map[string]any {
	input := map[string]any{"namespace": p.Namespace, "name": p.Name, "uid": p.UID, "version": p.ResourceVersion, "finalizers": p.Finalizers,
		"node": p.Spec.NodeName, "deletion": p.DeletionTimestamp, "phase": p.Status.Phase, "scheduler": p.Spec.SchedulerName}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers {
			input["sandbox"] = c.Status
		}
	}
	var last time.Time
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.FinishedAt.After(last) {
			last = t.FinishedAt.Time
		}
	}
	input["ended"] = last
	input["reason"], input["message"] = p.Status.Reason, p.Status.Message
	if assignment, ours := rdma.Ours(p); ours && p.Spec.NodeName != "" {
		networks, _ := rdma.OwnNetworks(p, assignment) // an annotation that cannot be read has none
		input["networks"] = networks.Elements()
	}
	input["neverStarted"] = p.Status.Phase == corev1.PodFailed && len(p.Status.ContainerStatuses) == 0
	return input
}

// watchdogInput is what package watchdog decides by, besides.
func watchdogInput(p *corev1.Pod) map[string]any {
	input := map[string]any{"created": p.CreationTimestamp, "gates": p.Spec.SchedulingGates}
	for _, key := range []string{rdma.VFAnnotation, rdma.PFAnnotation, corev1.MirrorPodAnnotationKey, rdma.ResourcePoolAnnotation} {
		if value, ok := p.Annotations[key]; ok {
			input[key] = value
		}
	}
	if p.Spec.SchedulerName == rdma.SchedulerName {
		input["looked"] = slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
	}
	return input
}

func trimPod(t require.TestingT, p *corev1.Pod) *corev1.Pod {
	object, err := TrimPod(p)
	require.NoError(t, err)
	trimmed, ok := object.(*corev1.Pod)
	require.True(t, ok)
	return trimmed
}

func trimNode(t require.TestingT, n *corev1.Node) *corev1.Node {
	object, err := TrimNode(n)
	require.NoError(t, err)
	trimmed, ok := object.(*corev1.Node)
	require.True(t, ok)
	return trimmed
}

func TestATrimmedPodSaysTheSame(t *testing.T) {
	policy := config(t, "groupKeys: [{label: gang}, {field: spec.schedulingGroup}]").Policy
	rapid.Check(t, func(t *rapid.T) {
		p := drawPod(t)
		before := p.DeepCopy()
		trimmed := trimPod(t, p)
		require.Empty(t, cmp.Diff(before, p), "what was given must not be changed")

		charge, counts := pools.ChargeOf(p, policy)
		trimmedCharge, trimmedCounts := pools.ChargeOf(trimmed, policy)
		require.Equal(t, counts, trimmedCounts)
		require.Equal(t, charge, trimmedCharge)
		assignment, err := rdma.ReadAssignment(p)
		trimmedAssignment, trimmedErr := rdma.ReadAssignment(trimmed)
		require.Equal(t, assignment, trimmedAssignment)
		require.Equal(t, fmt.Sprint(err), fmt.Sprint(trimmedErr))
		require.Empty(t, cmp.Diff(releaseInput(p), releaseInput(trimmed)))
		require.Empty(t, cmp.Diff(watchdogInput(p), watchdogInput(trimmed)))

		require.Empty(t, cmp.Diff(trimmed, trimPod(t, trimmed)), "a second time changes nothing")
		require.Empty(t, trimmed.ManagedFields)
		require.NotContains(t, trimmed.Annotations, "kubectl.kubernetes.io/last-applied-configuration")
		require.NotContains(t, trimmed.Annotations, rdma.Domain+"unknown", "which anybody may write")
		for _, c := range slices.Concat(trimmed.Spec.InitContainers, trimmed.Spec.Containers) {
			require.Empty(t, c.Image)
			require.Empty(t, c.Env)
		}
	})
}

func TestATrimmedNodeSaysTheSame(t *testing.T) {
	cfg := config(t, "")
	rapid.Check(t, func(t *rapid.T) {
		n := node("n1", poolA, 4)
		n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
		n.Labels = rapid.MapOf(rapid.SampledFrom([]string{"zone", "gpu"}), rapid.SampledFrom([]string{"a", "b"})).Draw(t, "labels")
		n.Spec.Unschedulable = rapid.Bool().Draw(t, "cordoned")
		n.Spec.ProviderID = "x"
		if rapid.Bool().Draw(t, "tainted") {
			n.Spec.Taints = []corev1.Taint{{Key: rapid.SampledFrom([]string{"x", corev1.TaintNodeOutOfService}).Draw(t, "taint"), Effect: corev1.TaintEffectNoSchedule}}
		}
		n.Status.Allocatable, n.Status.Capacity = drawResources(t, "allocatable"), drawResources(t, "capacity")
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
		n.Status.Conditions = nil
		for _, condition := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeReady} {
			if rapid.Bool().Draw(t, string(condition)) {
				n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: condition,
					Status: rapid.SampledFrom([]corev1.ConditionStatus{"True", "False", "Unknown"}).Draw(t, "status"), LastHeartbeatTime: metav1.Now()})
			}
		}
		trimmed := trimNode(t, n)
		demand := pools.Demand{Intent: rdma.Intent{{Type: rdma.VF, Count: 1}}, Pod: &corev1.Pod{}}
		if rapid.Bool().Draw(t, "selects") {
			demand.Pod.Spec.NodeSelector = map[string]string{"zone": "a"}
		}
		say := func(n *corev1.Node) (usage []pools.Usage, nodes []pools.NodeUsage, choice pools.Choice) {
			l := pools.NewLedger(nil)
			l.SetNode(n)
			choice, err := l.Choose(cfg, demand)
			require.NoError(t, err)
			return l.Usage(), l.NodeUsage(poolA), choice
		}
		usage, nodes, choice := say(n)
		trimmedUsage, trimmedNodes, trimmedChoice := say(trimmed)
		require.Equal(t, usage, trimmedUsage)
		require.Equal(t, nodes, trimmedNodes)
		require.Equal(t, choice, trimmedChoice)
		require.Equal(t, pools.Eligible(n), pools.Eligible(trimmed))
		require.Equal(t, n.Spec.Taints, trimmed.Spec.Taints)
		require.Equal(t, n.UID, trimmed.UID)
		require.Empty(t, trimmed.Status.Images)
		require.Empty(t, trimmed.ManagedFields)
	})
}

func TestTrimMustNotTouchOtherObjects(t *testing.T) {
	for _, object := range []any{nil, "text", cache.DeletedFinalStateUnknown{Key: "k"}, &corev1.ConfigMap{}} {
		for _, trim := range []func(any) (any, error){TrimPod, TrimNode} {
			got, err := trim(object)
			require.NoError(t, err)
			assert.Equal(t, object, got)
		}
	}
}

// TestATrimmedPodKeepsItsOwnNetworksAlone: the user's part of the annotation has no bound but that of all annotations.
func TestATrimmedPodKeepsItsOwnNetworksAlone(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	bound := func(networks string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := pod("p", "uid", "n1", poolA, 2)
		p.Finalizers = []string{rdma.Finalizer}
		p.Annotations = rdma.Assignment{{Type: rdma.VF, Pool: poolA, Count: 2}}.Annotations()
		p.Annotations[rdma.NetworksAnnotation] = networks
		for _, f := range change {
			f(p)
		}
		return p
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"in the short form": {bound("other/" + long + ",ns/a@rdma0,ns/b@rdma1"), "ns/a@rdma0,ns/b@rdma1"},
		"in the JSON form": {bound(`[{"name":"u","cni-args":{"x":"` + long + `"}}, {"name":"a.b"}, {"name":"c"}]`),
			`[{"name":"a.b"},{"name":"c"}]`},
		"not of a pod that is no longer ours":  {bound("ns/a@rdma0,ns/b@rdma1", func(p *corev1.Pod) { p.Finalizers = nil }), ""},
		"not of a pod that waits: it has none": {bound("u,v", func(p *corev1.Pod) { p.Spec.NodeName = "" }), ""},
		"not when they cannot be read":         {bound("[null]"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, trimPod(t, tc.pod).Annotations[rdma.NetworksAnnotation])
		})
	}
}

func TestATrimmedPlainPodIsSmall(t *testing.T) {
	p := pod("p", "uid", "n1", "cpu", 1)
	p.Annotations = map[string]string{"big": string(make([]byte, 4096))}
	p.Spec.Containers[0].Args = []string{string(make([]byte, 4096))}
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	text, err := json.Marshal(trimPod(t, p))
	require.NoError(t, err)
	assert.Less(t, len(text), 500)
}
