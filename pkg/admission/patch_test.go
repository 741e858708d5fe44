package admission

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// tricky keys are those that a JSON pointer must escape, and some that look escaped already.
var tricky = []string{"a", "a/b", "a~b", "a~1b", "a~0b", "~", "/", "~~//", "é/ü", "a.com/b~c", "-", "0", `q"\`, "", "a\nb"}

func drawMap(t *rapid.T, label string) map[string]string {
	m := rapid.MapOfN(rapid.SampledFrom(tricky), rapid.SampledFrom([]string{"", "1", "2", `"`, "~/", "é"}), 0, 5).Draw(t, label)
	if len(m) == 0 {
		return nil // what is empty is not in the JSON that the API server sends
	}
	return m
}

func drawList(t *rapid.T, label string) corev1.ResourceList {
	m := rapid.MapOfN(rapid.SampledFrom([]corev1.ResourceName{"cpu", "memory", "a.com/b", "a~1b.com/c", "x.com/~"}),
		rapid.SampledFrom([]string{"0", "1", "1k", "1500m", "1Gi", "9223372036854775807"}), 0, 4).Draw(t, label)
	if len(m) == 0 {
		return nil
	}
	list := corev1.ResourceList{}
	for name, text := range m {
		list[name] = resource.MustParse(text)
	}
	return list
}

func drawResources(t *rapid.T) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: drawList(t, "requests"), Limits: drawList(t, "limits")}
	if rapid.Bool().Draw(t, "claims") {
		r.Claims = []corev1.ResourceClaim{{Name: "c"}}
	}
	return r
}

// change makes of a list what Inject may make of it: more entries, or other quantities.
func change(t *rapid.T, list corev1.ResourceList, label string) corev1.ResourceList {
	changed := list.DeepCopy()
	for name, quantity := range drawList(t, label) {
		set(&changed, name, quantity)
	}
	return changed
}

func TestThePatchMakesOfOnePodTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: drawMap(t, "before"),
			Finalizers: rapid.SliceOfN(rapid.SampledFrom(tricky), 0, 3).Draw(t, "finalizers")}}
		before.Spec.SchedulerName = rapid.SampledFrom([]string{"", "default-scheduler", "tenant-scheduler"}).Draw(t, "scheduler")
		for range rapid.IntRange(0, 2).Draw(t, "init") {
			before.Spec.InitContainers = append(before.Spec.InitContainers, corev1.Container{Name: "i", Resources: drawResources(t)})
		}
		for range rapid.IntRange(1, 3).Draw(t, "containers") {
			before.Spec.Containers = append(before.Spec.Containers, corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "X"}}, Resources: drawResources(t)})
		}
		after := before.DeepCopy()
		after.Annotations = drawMap(t, "after")
		after.Finalizers = append(after.Finalizers, rapid.SliceOfN(rapid.SampledFrom(tricky), 0, 2).Draw(t, "more")...)
		after.Spec.SchedulerName = rapid.SampledFrom([]string{before.Spec.SchedulerName, "tenant-scheduler"}).Draw(t, "scheduler")
		for _, containers := range [][]corev1.Container{after.Spec.InitContainers, after.Spec.Containers} {
			for i := range containers {
				containers[i].Resources.Requests = change(t, containers[i].Resources.Requests, "requests")
				containers[i].Resources.Limits = change(t, containers[i].Resources.Limits, "limits")
			}
		}

		raw, err := json.Marshal(before)
		require.NoError(t, err)
		want, err := json.Marshal(after)
		require.NoError(t, err)
		operations := patch(before, after)
		text, err := json.Marshal(operations)
		require.NoError(t, err)
		decoded, err := jsonpatch.DecodePatch(text)
		require.NoError(t, err)
		got, err := decoded.Apply(raw)
		require.NoError(t, err, "%s to %s", text, raw)
		var gotPod, wantPod corev1.Pod
		require.NoError(t, json.Unmarshal(got, &gotPod))
		require.NoError(t, json.Unmarshal(want, &wantPod))
		if len(gotPod.Annotations) == 0 {
			gotPod.Annotations = nil // a map whose last key was removed stays, and is empty
		}
		require.Empty(t, cmp.Diff(wantPod, gotPod), "%s to %s", text, raw)
		require.Empty(t, patch(&gotPod, &gotPod))
	})
}

func TestAPatchMustNotSayWhatStaysAsItIs(t *testing.T) {
	before := podFrom(t, `
metadata: {name: p, annotations: {a/b: "1", c~d: "2"}, finalizers: [x.com/y]}
spec:
  schedulerName: default-scheduler
  containers: [{name: a, resources: {requests: {cpu: 500m}, limits: {cpu: "1"}}}, {name: b}]`)
	after := before.DeepCopy()
	assert.Empty(t, patch(before, after))
	after.Annotations["c~d"] = "3"
	delete(after.Annotations, "a/b")
	after.Finalizers = append(after.Finalizers, "z.com/w")
	set(&after.Spec.Containers[0].Resources.Requests, "a.com/b", resource.MustParse("2"))
	set(&after.Spec.Containers[1].Resources.Limits, "a.com/b", resource.MustParse("1k"))
	text, err := json.Marshal(patch(before, after))
	require.NoError(t, err)
	assert.JSONEq(t, `[
		{"op": "remove", "path": "/metadata/annotations/a~1b"},
		{"op": "add", "path": "/metadata/annotations/c~0d", "value": "3"},
		{"op": "add", "path": "/metadata/finalizers/-", "value": "z.com/w"},
		{"op": "add", "path": "/spec/containers/0/resources/requests/a.com~1b", "value": "2"},
		{"op": "add", "path": "/spec/containers/1/resources", "value": {"limits": {"a.com/b": "1k"}}}]`, string(text))
}
