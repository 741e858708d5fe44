package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func TestEventsToRegister(t *testing.T) {
	f := newFixture(t, setup{})
	registered, err := f.EventsToRegister(t.Context())
	require.NoError(t, err)
	got := map[fwk.EventResource]fwk.ActionType{}
	for _, event := range registered {
		require.NotNil(t, event.QueueingHintFn, "without a hint every such event wakes the pod")
		got[event.Event.Resource] = event.Event.ActionType
	}
	require.Equal(t, map[fwk.EventResource]fwk.ActionType{
		fwk.Node:        fwk.Add | fwk.UpdateNodeAllocatable,
		fwk.Pod:         fwk.Delete,
		fwk.DeviceClass: fwk.Add | fwk.Update,
	}, got)
}

type hintCase struct {
	pod            *corev1.Pod
	oldObj, newObj any
	// seen are other pods that the informer shows.
	seen    []*corev1.Pod
	dra     map[corev1.ResourceName]bool
	want    fwk.QueueingHint
	wantErr bool
}

func runHints(t *testing.T, hint func(*fixture) fwk.QueueingHintFn, cases map[string]hintCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, setup{options: []frameworkruntime.Option{frameworkruntime.WithSharedDRAManager(classResolver{served: tc.dra})}})
			if tc.pod == nil {
				tc.pod = vfPod("p", 2)
			}
			f.see(tc.seen...)
			got, err := hint(f)(klog.Background(), tc.pod, tc.oldObj, tc.newObj)
			require.Equal(t, tc.wantErr, err != nil, err)
			require.Equal(t, tc.want.String(), got.String())
		})
	}
}

// TestNodeHint: cases S24 of docs/cases.md.
func TestNodeHint(t *testing.T) {
	twoPools := injected(plainPod(teamA, "p"), rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: 1}, {Type: rdma.PF, Pool: pfPool, Count: 1}})
	holders := func(count int64, priority int32) []*corev1.Pod {
		return []*corev1.Pod{vfPod("holder", count, onNode(node1), withPriority(priority))}
	}
	runHints(t, func(f *fixture) fwk.QueueingHintFn { return f.nodeHint }, map[string]hintCase{
		"a new node with enough devices wakes the pod":            {newObj: newNode(node1, vfPool, 2), want: fwk.Queue},
		"a node that offers more now wakes the pod":               {oldObj: newNode(node1, vfPool, 0), newObj: newNode(node1, vfPool, 2), want: fwk.Queue},
		"a node with too few devices does not":                    {newObj: newNode(node1, vfPool, 1), want: fwk.QueueSkip},
		"a node with another pool's devices does not":             {newObj: newNode(node1, pfPool, 8), want: fwk.QueueSkip},
		"a node whose device plugin went away does not":           {oldObj: newNode(node1, vfPool, 2), newObj: newNode(node1), want: fwk.QueueSkip},
		"a node with one of two pools does not":                   {pod: twoPools, newObj: newNode(node1, vfPool, 8), want: fwk.QueueSkip},
		"a node with both pools wakes the pod":                    {pod: twoPools, newObj: newNode(node1, vfPool, 1, pfPool, 1), want: fwk.Queue},
		"a node without device plugin wakes where DRA serves":     {newObj: newNode(node1), dra: map[corev1.ResourceName]bool{vfPool: true}, want: fwk.Queue},
		"a full node does not":                                    {newObj: newNode(node1, vfPool, 2), seen: holders(1, 0), want: fwk.QueueSkip},
		"a node with enough left wakes the pod":                   {newObj: newNode(node1, vfPool, 3), seen: holders(1, 0), want: fwk.Queue},
		"a full node wakes a pod that may preempt there":          {pod: vfPod("p", 2, withPriority(5)), newObj: newNode(node1, vfPool, 2), seen: holders(1, 0), want: fwk.Queue},
		"a full node does not wake a pod that never preempts":     {pod: vfPod("p", 2, withPriority(5), never), newObj: newNode(node1, vfPool, 2), seen: holders(1, 0), want: fwk.QueueSkip},
		"a pod that is not ours is woken":                         {pod: plainPod(teamA, "p"), newObj: newNode(node1), want: fwk.Queue},
		"what cannot be read wakes the pod":                       {newObj: "no node", want: fwk.Queue, wantErr: true},
		"an old object that cannot be read wakes the pod as well": {oldObj: 7, newObj: newNode(node1), want: fwk.Queue, wantErr: true},
	})
}

// TestPodHint: cases S24 of docs/cases.md.
func TestPodHint(t *testing.T) {
	inGroup := labelled("scheduling.x-k8s.io/pod-group", "train")
	notOurs := plainPod(teamB, "other", onNode(node1))
	notOurs.Spec.Containers[0].Resources.Requests = devices(vfPool, 1)
	initOnly := plainPod(teamB, "other", onNode(node1))
	initOnly.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{Requests: devices(vfPool, 1)}}}
	otherPool := rdma.Assignment{{Type: rdma.VF, Pool: sharedPool, Count: 1}}
	runHints(t, func(f *fixture) fwk.QueueingHintFn { return f.podHint }, map[string]hintCase{
		"a pod that held devices of the pool wakes it":           {oldObj: vfPod("other", 1, onNode(node1)), want: fwk.Queue},
		"so does one that never was ours":                        {oldObj: notOurs, want: fwk.Queue},
		"so does one that held them in an init container":        {oldObj: initOnly, want: fwk.Queue},
		"a plain pod does not":                                   {oldObj: plainPod(teamA, "other", onNode(node1)), want: fwk.QueueSkip},
		"a pod of another pool does not":                         {oldObj: injected(plainPod(teamA, "other"), otherPool), want: fwk.QueueSkip},
		"a member of its group ends the conflict and wakes it":   {pod: vfPod("p", 1, inGroup), oldObj: injected(plainPod(teamA, "other"), otherPool, inGroup), want: fwk.Queue},
		"a pod of a group of another namespace does not":         {pod: vfPod("p", 1, inGroup), oldObj: injected(plainPod(teamB, "other"), otherPool, inGroup), want: fwk.QueueSkip},
		"pods in no group are not one group":                     {pod: vfPod("p", 1), oldObj: injected(plainPod(teamA, "other"), otherPool), want: fwk.QueueSkip},
		"a pod that is not ours is woken":                        {pod: plainPod(teamA, "p"), oldObj: plainPod(teamA, "other"), want: fwk.Queue},
		"what cannot be read wakes the pod":                      {oldObj: newNode(node1), want: fwk.Queue, wantErr: true},
		"a deleted pod that had requests of zero devices is not": {oldObj: vfPod("other", 0, onNode(node1)), want: fwk.QueueSkip},
	})
}

func TestDeviceClassHint(t *testing.T) {
	class := func(name string) *resourceapi.DeviceClass {
		c := &resourceapi.DeviceClass{}
		if name != "" {
			c.Spec.ExtendedResourceName = &name
		}
		return c
	}
	runHints(t, func(f *fixture) fwk.QueueingHintFn { return f.deviceClassHint }, map[string]hintCase{
		"a class that serves the pool now wakes the pod": {oldObj: class(""), newObj: class(string(vfPool)), want: fwk.Queue},
		"a new class that serves the pool wakes the pod": {newObj: class(string(vfPool)), want: fwk.Queue},
		"a class for another pool does not":              {newObj: class(string(pfPool)), want: fwk.QueueSkip},
		"a class without extended resource does not":     {newObj: class(""), want: fwk.QueueSkip},
		"a pod that is not ours is woken":                {pod: plainPod(teamA, "p"), newObj: class(""), want: fwk.Queue},
		"what cannot be read wakes the pod":              {newObj: newNode(node1), want: fwk.Queue, wantErr: true},
	})
}
