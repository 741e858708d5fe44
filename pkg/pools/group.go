package pools

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/scheduler-plugins/apis/scheduling"
)

// SchedulingGroupField is the only field that a GroupKey can name.
const SchedulingGroupField = "spec.schedulingGroup"

// GroupKey says where a pod names the gang it belongs to. Exactly one of its fields is set.
type GroupKey struct {
	// Label is a label of the pod whose value names the group.
	Label string `json:"label,omitempty"`
	// Field is SchedulingGroupField, Kubernetes' own reference to a PodGroup.
	Field string `json:"field,omitempty"`
}

func (k GroupKey) validate() error {
	switch {
	case (k.Label == "") == (k.Field == ""):
		return fmt.Errorf("label %q and field %q: exactly one of them must be set", k.Label, k.Field)
	case k.Field != "" && k.Field != SchedulingGroupField:
		return fmt.Errorf("field: %q must be %q", k.Field, SchedulingGroupField)
	case k.Label != "":
		if problems := validation.IsQualifiedName(k.Label); len(problems) > 0 {
			return fmt.Errorf("label: %q: %s", k.Label, strings.Join(problems, "; "))
		}
	}
	return nil
}

// DefaultGroupKeys are Kubernetes' own gangs and those of scheduler-plugins' coscheduling, Kubeflow's training-operator,
// LeaderWorkerSet (a leader and its workers are one gang) and JobSet.
func DefaultGroupKeys() []GroupKey {
	return []GroupKey{
		{Field: SchedulingGroupField},
		{Label: scheduling.GroupName + "/pod-group"},
		{Label: "training.kubeflow.org/job-name"},
		{Label: "leaderworkerset.sigs.k8s.io/group-key"},
		{Label: "jobset.sigs.k8s.io/jobset-name"},
	}
}

// Group identifies a gang of pods. The zero value means: in no group.
type Group struct {
	Namespace, Key, Name string
}

// String returns the group as a person would write it.
func (g Group) String() string { return g.Namespace + "/" + g.Name + " (" + g.Key + ")" }

// GroupOf returns the group that the first matching key names, or the zero Group. The namespace is given apart since a
// pod under admission may not carry it yet.
func (p Policy) GroupOf(namespace string, pod *corev1.Pod) Group {
	for _, key := range p.GroupKeys {
		if key.Label != "" {
			if name := pod.Labels[key.Label]; name != "" {
				return Group{Namespace: namespace, Key: key.Label, Name: name}
			}
			continue
		}
		if ref := pod.Spec.SchedulingGroup; ref != nil && ref.PodGroupName != nil && *ref.PodGroupName != "" {
			return Group{Namespace: namespace, Key: key.Field, Name: *ref.PodGroupName}
		}
	}
	return Group{}
}
