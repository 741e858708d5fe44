package devcluster

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/utils/gotpl"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
)

// player plays the Stages as kwok does, without an API server.
type player struct {
	stages   lifecycle.Lifecycle
	renderer gotpl.Renderer
}

func newPlayer(t *testing.T, kind string) *player {
	t.Helper()
	data, err := kwokConfig()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "kwok.yaml")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	objects, err := config.Load(t.Context(), file)
	require.NoError(t, err)
	var stages []*internalversion.Stage
	for _, stage := range config.FilterWithType[*internalversion.Stage](objects) {
		if stage.Spec.ResourceRef.Kind == kind {
			stages = append(stages, stage)
		}
	}
	lc, err := lifecycle.NewLifecycle(stages)
	require.NoError(t, err)
	return &player{stages: lc, renderer: gotpl.NewRenderer(gotpl.FuncMap{
		"NodeIP":      func() string { return "127.0.0.1" },
		"NodeIPsWith": func(string) []string { return []string{"127.0.0.1"} },
		"PodIPsWith":  func(string, bool, string, string, string) []string { return []string{"10.244.0.1"} },
	})}
}

// next is the stage that comes for an object, "" if none, and after what wait. More than one is a mistake in the Stages:
// kwok would draw lots.
func (p *player) next(t *testing.T, object metav1.Object) (*lifecycle.Stage, time.Duration) {
	t.Helper()
	event := &lifecycle.Event{Labels: object.GetLabels(), Annotations: object.GetAnnotations(), Data: object}
	possible, err := p.stages.ListAllPossible(t.Context(), event)
	require.NoError(t, err)
	require.LessOrEqual(t, len(possible), 1, "ambiguous")
	if len(possible) == 0 {
		return nil, 0
	}
	delay, _, err := possible[0].Delay(t.Context(), event, time.Now())
	require.NoError(t, err)
	return possible[0], delay
}

// play applies a stage to an object and says whether it deleted it.
func play[T metav1.Object](t *testing.T, p *player, stage *lifecycle.Stage, object *T) (deleted bool) {
	t.Helper()
	_, err := stage.DoSteps(0, (*object).GetFinalizers(), *object, p.renderer,
		func(*internalversion.StageEvent) error { return nil },
		func() error { deleted = true; return nil },
		func(patch *lifecycle.Patch) error {
			require.Equal(t, "status", patch.Subresource)
			original, err := json.Marshal(*object)
			require.NoError(t, err)
			merged, err := strategicpatch.StrategicMergePatch(original, patch.Data, *object)
			require.NoError(t, err, string(patch.Data))
			var changed T
			require.NoError(t, json.Unmarshal(merged, &changed), string(merged))
			*object = changed
			return nil
		},
		func(*lifecycle.Apply) error { return nil },
	)
	require.NoError(t, err)
	return deleted
}

// through plays stage after stage, each by its name.
func (p *player) through(t *testing.T, pod *corev1.Pod, want ...string) *corev1.Pod {
	t.Helper()
	for _, name := range want {
		stage, _ := p.next(t, pod)
		require.NotNil(t, stage, "want %s", name)
		require.Equal(t, name, stage.Name())
		require.False(t, play(t, p, stage, &pod))
	}
	return pod
}

func boundPod(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "tenant-a", UID: "u-1", Annotations: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{
			NodeName: "node-1", RestartPolicy: corev1.RestartPolicyAlways,
			InitContainers: []corev1.Container{
				{Name: "init", Image: "i"}, {Name: "sidecar", Image: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
			},
			Containers: []corev1.Container{{Name: "main", Image: "m"}, {Name: "second", Image: "n"}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func deletedPod(pod *corev1.Pod, grace time.Duration) *corev1.Pod {
	pod.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(grace)))
	pod.DeletionGracePeriodSeconds = new(int64(grace.Seconds()))
	return pod
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

func TestABoundPodRunsWithItsSandbox(t *testing.T) {
	p := newPlayer(t, "Pod")
	pod := p.through(t, boundPod(nil), "pod-running")
	require.Equal(t, corev1.PodRunning, pod.Status.Phase)
	require.Equal(t, "10.244.0.1", pod.Status.PodIP)
	for _, kind := range []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
	} {
		require.Equal(t, corev1.ConditionTrue, condition(pod, kind), kind)
	}
	require.Len(t, pod.Status.ContainerStatuses, 2)
	require.NotNil(t, pod.Status.InitContainerStatuses[0].State.Terminated)
	require.NotNil(t, pod.Status.InitContainerStatuses[1].State.Running, "a sidecar runs on")

	stage, _ := p.next(t, pod)
	require.Nil(t, stage, "it runs until somebody deletes it")
}

func TestAJobsPodEndsByItselfFirstItsContainersThenItsPhase(t *testing.T) {
	for name, tc := range map[string]struct {
		exit      string
		wantPhase corev1.PodPhase
		wantExit  int32
	}{
		"well by default":         {wantPhase: corev1.PodSucceeded},
		"badly if it is asked to": {exit: "3", wantPhase: corev1.PodFailed, wantExit: 3},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(t, "Pod")
			pod := p.through(t, boundPod(func(pod *corev1.Pod) {
				pod.Spec.RestartPolicy = corev1.RestartPolicyNever
				pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j"}}
				if tc.exit != "" {
					pod.Annotations["devcluster/exit"] = tc.exit
				}
			}), "pod-running", "pod-exited")
			require.Equal(t, corev1.PodRunning, pod.Status.Phase)
			require.Equal(t, corev1.ConditionTrue, condition(pod, corev1.PodReadyToStartContainers))
			require.Equal(t, tc.wantExit, pod.Status.ContainerStatuses[1].State.Terminated.ExitCode)

			pod = p.through(t, pod, "pod-finished")
			require.Equal(t, tc.wantPhase, pod.Status.Phase)
			require.Equal(t, corev1.ConditionFalse, condition(pod, corev1.PodReadyToStartContainers))
			require.Nil(t, pod.Status.InitContainerStatuses[1].State.Running, "the sidecar ends too")
			stage, _ := p.next(t, pod)
			require.Nil(t, stage, "a finished pod is left alone")
		})
	}
}

func TestAPodRunsAsLongAsItIsAskedTo(t *testing.T) {
	p := newPlayer(t, "Pod")
	pod := p.through(t, boundPod(func(pod *corev1.Pod) { pod.Annotations["devcluster/run-seconds"] = "30" }), "pod-running")
	stage, wait := p.next(t, pod)
	require.Equal(t, "pod-exited", stage.Name())
	require.InDelta(t, 30.5, wait.Seconds(), 1)

	// kwok computes the wait anew at every change of the object: it must not become longer.
	pod.Status.StartTime = new(metav1.NewTime(time.Now().Add(-20 * time.Second)))
	_, wait = p.next(t, pod)
	require.InDelta(t, 10.5, wait.Seconds(), 1)
}

func TestADeletedPodRunsOnForItsGraceAndThenChangesAllAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		grace       time.Duration
		wantWait    float64
		wantPhase   corev1.PodPhase
	}{
		"soon by default":                   {grace: 30 * time.Second, wantWait: 0.5, wantPhase: corev1.PodFailed},
		"after the seconds it asks for":     {annotations: map[string]string{"devcluster/stop-seconds": "9"}, grace: 30 * time.Second, wantWait: 9.5, wantPhase: corev1.PodFailed},
		"but never after its grace":         {annotations: map[string]string{"devcluster/stop-seconds": "90"}, grace: 30 * time.Second, wantWait: 30.5, wantPhase: corev1.PodFailed},
		"at once when it is forced":         {grace: 0, wantPhase: corev1.PodFailed},
		"well when its containers end well": {annotations: map[string]string{"devcluster/exit": "0"}, grace: 30 * time.Second, wantWait: 0.5, wantPhase: corev1.PodSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(t, "Pod")
			pod := p.through(t, boundPod(func(pod *corev1.Pod) {
				pod.Finalizers = []string{"example.com/hold"}
				maps.Copy(pod.Annotations, tc.annotations)
			}), "pod-running")
			pod = deletedPod(pod, tc.grace)
			stage, wait := p.next(t, pod)
			require.Equal(t, "pod-stopped", stage.Name())
			require.InDelta(t, tc.wantWait, wait.Seconds(), 1.1)

			require.False(t, play(t, p, stage, &pod))
			require.Equal(t, tc.wantPhase, pod.Status.Phase)
			require.Equal(t, corev1.ConditionFalse, condition(pod, corev1.PodReadyToStartContainers))
			for _, status := range append(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses...) {
				require.NotNil(t, status.State.Terminated, status.Name)
			}
			require.EqualValues(t, 0, pod.Status.InitContainerStatuses[0].State.Terminated.ExitCode, "what ended before stays")
			require.Equal(t, []string{"example.com/hold"}, pod.Finalizers, "other people's finalizers are theirs")
		})
	}
}

func TestATerminalDeletedPodIsDeletedOnceWithGraceZero(t *testing.T) {
	p := newPlayer(t, "Pod")
	pod := p.through(t, deletedPod(p.through(t, boundPod(nil), "pod-running"), 30*time.Second), "pod-stopped")
	stage, wait := p.next(t, pod)
	require.Equal(t, "pod-deleted", stage.Name())
	require.Zero(t, wait)
	require.True(t, play(t, p, stage, &pod))

	// The API server keeps it for a finalizer and sets its grace to 0; kwok has nothing more to do.
	pod.DeletionGracePeriodSeconds = new(int64(0))
	stage, _ = p.next(t, pod)
	require.Nil(t, stage)
}

func TestAPodDeletedBeforeItRanFails(t *testing.T) {
	p := newPlayer(t, "Pod")
	pod := p.through(t, deletedPod(boundPod(nil), 30*time.Second), "pod-stopped")
	require.Equal(t, corev1.PodFailed, pod.Status.Phase)
	require.Empty(t, pod.Status.ContainerStatuses)
}

func TestANodeBecomesReadyWithWhatItWasCreatedWith(t *testing.T) {
	vf := corev1.ResourceName(DefaultVFResource)
	for name, tc := range map[string]struct {
		status         corev1.NodeStatus
		wantCPU        string
		wantVF         string
		wantCapacityVF string
		wantAnyVFAtAll bool
	}{
		"nothing at all": {wantCPU: "64"},
		"capacity only is allocatable too": {
			status:  corev1.NodeStatus{Capacity: corev1.ResourceList{vf: resource.MustParse("8")}},
			wantCPU: "64", wantVF: "8", wantCapacityVF: "8", wantAnyVFAtAll: true,
		},
		"a device plugin that is away stays away": {
			status: corev1.NodeStatus{
				Capacity:    corev1.ResourceList{vf: resource.MustParse("8"), corev1.ResourceCPU: resource.MustParse("4")},
				Allocatable: corev1.ResourceList{vf: resource.MustParse("0"), corev1.ResourceCPU: resource.MustParse("4")},
			},
			wantCPU: "4", wantVF: "0", wantCapacityVF: "8", wantAnyVFAtAll: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(t, "Node")
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: tc.status}
			stage, _ := p.next(t, node)
			require.Equal(t, "node-ready", stage.Name())
			play(t, p, stage, &node)
			cpu := node.Status.Allocatable[corev1.ResourceCPU]
			require.Equal(t, tc.wantCPU, cpu.String())
			allocatable, offered := node.Status.Allocatable[vf]
			require.Equal(t, tc.wantAnyVFAtAll, offered)
			if offered {
				capacity := node.Status.Capacity[vf]
				require.Equal(t, tc.wantVF, allocatable.String())
				require.Equal(t, tc.wantCapacityVF, capacity.String())
			}
			stage, wait := p.next(t, node)
			require.Equal(t, "node-heartbeat", stage.Name())
			require.Greater(t, wait, time.Minute)
		})
	}
}

func TestAnAnnotatedNodeIsNotReadyUntilTheAnnotationGoes(t *testing.T) {
	p := newPlayer(t, "Node")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"devcluster/not-ready": "true"}}}
	for _, want := range []string{"node-not-ready", "node-ready"} {
		stage, _ := p.next(t, node)
		require.Equal(t, want, stage.Name())
		play(t, p, stage, &node)
		if want == "node-not-ready" {
			stage, _ = p.next(t, node)
			require.Nil(t, stage)
		}
		node.Annotations = nil
	}
}
