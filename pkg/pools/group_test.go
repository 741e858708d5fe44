package pools

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
)

func TestGroupOf(t *testing.T) {
	// Each as the project of that name writes it: scheduler-plugins v0.34.7 (apis/scheduling/v1alpha1.PodGroupLabel),
	// training-operator, LeaderWorkerSet (GroupUniqueHashLabelKey), JobSet (JobSetNameKey).
	const (
		podGroup = v1alpha1.PodGroupLabel
		training = "training.kubeflow.org/job-name"
		lws      = "leaderworkerset.sigs.k8s.io/group-key"
		jobset   = "jobset.sigs.k8s.io/jobset-name"
	)
	for _, tc := range []struct {
		name   string
		policy string
		labels map[string]string
		ref    *corev1.PodSchedulingGroup
		want   Group
	}{
		{name: "a pod without words is in no group", labels: map[string]string{"app": "x"}},
		{name: "scheduler-plugins' coscheduling", labels: map[string]string{podGroup: "g"}, want: Group{"ns", podGroup, "g"}},
		{name: "the training-operator", labels: map[string]string{training: "g"}, want: Group{"ns", training, "g"}},
		{name: "LeaderWorkerSet", labels: map[string]string{lws: "g"}, want: Group{"ns", lws, "g"}},
		{name: "JobSet", labels: map[string]string{jobset: "g"}, want: Group{"ns", jobset, "g"}},
		{name: "Kubernetes' own PodGroup", ref: &corev1.PodSchedulingGroup{PodGroupName: new("g")}, want: Group{"ns", SchedulingGroupField, "g"}},
		{name: "the first key in order decides", labels: map[string]string{jobset: "late", podGroup: "g"}, want: Group{"ns", podGroup, "g"}},
		{name: "the field comes before the labels", labels: map[string]string{podGroup: "late"}, ref: &corev1.PodSchedulingGroup{PodGroupName: new("g")},
			want: Group{"ns", SchedulingGroupField, "g"}},
		{name: "an empty label must not name a group", labels: map[string]string{podGroup: "", jobset: "g"}, want: Group{"ns", jobset, "g"}},
		{name: "a reference to nothing must not name a group", labels: map[string]string{jobset: "g"}, ref: &corev1.PodSchedulingGroup{}, want: Group{"ns", jobset, "g"}},
		{name: "an empty reference must not name a group", labels: map[string]string{jobset: "g"}, ref: &corev1.PodSchedulingGroup{PodGroupName: new("")}, want: Group{"ns", jobset, "g"}},
		{name: "a key that is not configured must not count", policy: "groupKeys: [{label: gang}]", labels: map[string]string{podGroup: "g"}},
		{name: "a configured label counts", policy: "groupKeys: [{label: gang}]", labels: map[string]string{"gang": "g"}, want: Group{"ns", "gang", "g"}},
		{name: "groups can be switched off", policy: "groupKeys: []", labels: map[string]string{podGroup: "g"}, ref: &corev1.PodSchedulingGroup{PodGroupName: new("g")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}, Spec: corev1.PodSpec{SchedulingGroup: tc.ref}}
			assert.Equal(t, tc.want, mustConfig("a.com/b", tc.policy).Policy.GroupOf("ns", pod))
		})
	}
	assert.Equal(t, "ns/g (gang)", Group{"ns", "gang", "g"}.String())
}

func TestRegroupMustNotTouchWhatEventsBrought(t *testing.T) {
	group := Group{"tenant-a", "gang", "g"}
	regrouped := func(p *corev1.Pod) Charge {
		charge, _ := ChargeOf(p, mustConfig("a.com/b").Policy)
		charge.Group = group
		return charge
	}
	t.Run("a pod that is as the store shows it joins its group", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, injected("p", "n1", "id", first))
		l.Regroup(regrouped(injected("p", "n1", "id", first)))
		assert.Contains(t, l.groups[group], "p")
		l.DeletePod("p")
		assertEmpty(t, l)
	})
	t.Run("a pod that is gone must not come back", func(t *testing.T) {
		l := NewLedger(nil)
		l.Regroup(regrouped(injected("p", "n1", "id", first)))
		assertEmpty(t, l)
	})
	t.Run("a pod that was bound meanwhile must not become unbound", func(t *testing.T) {
		l := NewLedger(nil)
		set(l, node("n1", first, 1), injected("p", "n1", "id", first))
		l.Regroup(regrouped(injected("p", "", "id", first)))
		assert.Equal(t, Usage{Pool: first, Allocatable: 1, Requested: 1, Nodes: 1}, l.UsageOf(first))
	})
}
