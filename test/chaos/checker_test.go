package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// script is a history made by hand, in the words of the logs themselves. Times are seconds.
type script struct {
	t           *testing.T
	audit, mock []string
	more        []event
}

var dawn = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func at(second float64) time.Time { return dawn.Add(time.Duration(second * float64(time.Second))) }

func rdmaPod(uid string, devices int64) *corev1.Pod {
	list := corev1.ResourceList{vfPool: *resource.NewQuantity(devices, resource.DecimalSI)}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid), Finalizers: []string{rdma.Finalizer},
			Annotations: rdma.Assignment{{Type: rdma.VF, Pool: vfPool, Count: devices}}.Annotations()},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}}},
	}
}

func (s *script) auditLine(second float64, verb, user string, ref map[string]string, request, response any) {
	line, err := json.Marshal(map[string]any{
		"kind": "Event", "stage": "ResponseComplete", "verb": verb, "user": map[string]string{"username": "system:serviceaccount:" + user},
		"objectRef": ref, "responseStatus": map[string]int{"code": 200}, "requestObject": request, "responseObject": response,
		"requestReceivedTimestamp": metav1.NewMicroTime(at(second)), "stageTimestamp": metav1.NewMicroTime(at(second + 0.01)),
	})
	require.NoError(s.t, err)
	s.audit = append(s.audit, string(line))
}

func (s *script) pod(second float64, verb, subresource string, pod *corev1.Pod) {
	s.auditLine(second, verb, "kubelet", map[string]string{"resource": "pods", "subresource": subresource, "namespace": pod.Namespace, "name": pod.Name}, nil, pod)
}

func (s *script) create(second float64, uid string, devices int64) {
	s.pod(second, "create", "", rdmaPod(uid, devices))
}

func (s *script) bind(second float64, uid, node string, networks ...string) {
	binding := &corev1.Binding{Target: corev1.ObjectReference{Name: node}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid,
		UID: types.UID(uid), Annotations: map[string]string{rdma.NetworksAnnotation: strings.Join(networks, ",")}}}
	s.auditLine(second, "create", schedulerAccount, map[string]string{"resource": "pods", "subresource": "binding", "namespace": "ns", "name": binding.Name}, binding, nil)
}

// ends is the kubelet's word; sandbox says whether the sandbox is still there.
func (s *script) ends(second float64, uid string, sandbox corev1.ConditionStatus) {
	pod := rdmaPod(uid, 1)
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: sandbox}}
	s.pod(second, "patch", "status", pod)
}

func (s *script) mockLine(second float64, operation, uid, node string, networks []string) {
	allocation := &tenant.Allocation{PodUID: types.UID(uid), Namespace: "ns", Pod: "pod-" + uid, Node: node}
	for _, name := range networks {
		allocation.Networks = append(allocation.Networks, tenant.Network{Namespace: "ns", Name: name, Pool: vfPool})
	}
	line, err := json.Marshal(engine.Record{Time: at(second), DurationMillis: 5, Operation: operation, Path: "/v1/allocations/" + uid + "?cluster=c",
		Acted: true, Status: 200, Allocation: allocation})
	require.NoError(s.t, err)
	s.mock = append(s.mock, string(line))
}

func (s *script) ensure(second float64, uid, node string, networks ...string) {
	s.mockLine(second, "ensure", uid, node, networks)
}

func (s *script) release(second float64, uid string, networks ...string) {
	s.mockLine(second, "release", uid, "", networks)
}

func (s *script) network(second float64, verb, name string) {
	s.auditLine(second, verb, "webhook-system:tenant-controller", map[string]string{"resource": "network-attachment-definitions", "namespace": "ns", "name": name}, nil, nil)
}

// auditWatch is when the scheduler watches nodes again.
func (s *script) auditWatch(second float64) {
	line, err := json.Marshal(map[string]any{
		"kind": "Event", "stage": "ResponseStarted", "verb": "watch", "user": map[string]string{"username": "system:serviceaccount:" + schedulerAccount},
		"objectRef": map[string]string{"resource": "nodes"}, "stageTimestamp": metav1.NewMicroTime(at(second)),
	})
	require.NoError(s.t, err)
	s.audit = append(s.audit, string(line))
}

func (s *script) offers(second float64, node string, devices int64) {
	s.more = append(s.more, event{Kind: nodeOffers, Source: fromDriver, From: at(second), To: at(second), Node: node, Devices: map[string]int64{vfPool: devices}})
}

func (s *script) events() []event {
	s.t.Helper()
	all := s.more
	for name, log := range map[string]struct {
		lines []string
		parse func([]byte) ([]event, error)
	}{"audit": {s.audit, parseAudit}, "mock": {s.mock, parseMock}} {
		path := filepath.Join(s.t.TempDir(), name)
		require.NoError(s.t, os.WriteFile(path, []byte(strings.Join(log.lines, "\n")+"\n{\"kind\":\"Event\",\"le"), 0o600))
		events, err := readLog(path, log.parse)
		require.NoError(s.t, err)
		all = append(all, events...)
	}
	return all
}

// lives plays a whole life without fault.
func (s *script) lives(from float64, uid, node string, networks ...string) {
	s.create(from, uid, int64(len(networks)))
	s.ensure(from+1, uid, node, networks...)
	s.bind(from+2, uid, node, networks...)
	s.ends(from+10, uid, corev1.ConditionFalse)
	s.release(from+11, uid, networks...)
}

func TestTheCheckerFinds(t *testing.T) {
	for name, tc := range map[string]struct {
		play func(*script)
		want map[class]int // by pod
	}{
		"nothing in a clean history": {func(s *script) {
			s.offers(0, "n1", 3)
			s.lives(1, "a", "n1", "net-a0", "net-a1")
			s.lives(2, "b", "n1", "net-b0")
			s.lives(12.5, "c", "n1", "net-a0", "net-a1", "net-b0") // they were free
		}, nil},
		"nothing where a reply was lost and the same is asked for again": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.ensure(3, "a", "n2", "net-a")
			s.bind(4, "a", "n2", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
			s.release(10, "a", "net-a")
		}, nil},
		"nothing where a killed mock wrote no line but deleted its network": {func(s *script) {
			s.create(1, "a", 1)
			s.network(1.5, "create", "net-a")
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
			s.network(10, "delete", "net-a")
		}, nil},
		"nothing where only the watch saw the end, to the second": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.more = append(s.more, event{Kind: podStopped, Source: fromWatch, From: at(9), To: at(15), UID: "a"})
			s.release(9.5, "a", "net-a")
		}, nil},
		"nothing where the node was deleted before": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.auditLine(5, "delete", "admin", map[string]string{"resource": "nodes", "name": "n1"}, nil, nil)
			s.release(6, "a", "net-a")
		}, nil},
		"nothing where another write showed the end later than the status did": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.more = append(s.more, event{Kind: podStopped, Source: fromWatch, From: at(9), To: at(15), UID: "a"})
			s.release(9.5, "a", "net-a")
			pod := rdmaPod("a", 1)
			pod.Status.Phase = corev1.PodFailed
			s.pod(9.8, "patch", "", pod)
		}, nil},
		"nothing where binding and end were answered with an error and made, as the object tells": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.release(8.5, "a", "net-a")
			pod := rdmaPod("a", 1)
			pod.Spec.NodeName, pod.Status.Phase = "n1", corev1.PodFailed
			pod.Annotations[rdma.NetworksAnnotation] = "net-a"
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at(3))},
				{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(at(8))},
			}
			s.pod(9, "patch", "", pod)
		}, nil},
		"a release too early, where only the object tells": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.release(6, "a", "net-a")
			pod := rdmaPod("a", 1)
			pod.Spec.NodeName, pod.Status.Phase = "n1", corev1.PodFailed
			pod.Annotations[rdma.NetworksAnnotation] = "net-a"
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at(3))},
				{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(at(8))},
			}
			s.pod(9, "patch", "", pod)
		}, map[class]int{double: 1}},
		"nothing where the first of two status writes is only in the watch": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.more = append(s.more, event{Kind: podStopped, Source: fromWatch, From: at(9), To: at(15), UID: "a"})
			s.release(10, "a", "net-a")
			s.ends(12, "a", corev1.ConditionFalse)
		}, nil},
		"nothing where the watch dates the binding too early": {func(s *script) {
			s.create(1, "a", 1)
			s.more = append(s.more, event{Kind: podBound, Source: fromWatch, From: at(3), To: at(5), UID: "a", Node: "n1", Networks: []string{"ns/net-a"}})
			s.ensure(2, "a", "n1", "net-a")
			s.release(3.2, "a", "net-a")
			s.ensure(3.5, "a", "n1", "net-a")
			s.bind(3.9, "a", "n1", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
			s.release(10, "a", "net-a")
		}, nil},
		"nothing where the object went away": {func(s *script) {
			s.offers(0, "n1", 1)
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.more = append(s.more, event{Kind: podRemoved, Source: fromWatch, From: at(9), To: at(9), UID: "a"})
			s.release(10, "a", "net-a")
			s.lives(11, "b", "n1", "net-b")
		}, nil},
		"nothing where the node went away with its pod and came back": {func(s *script) {
			s.offers(0, "n1", 1)
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.auditLine(5, "delete", "admin", map[string]string{"resource": "nodes", "name": "n1"}, nil, nil)
			s.release(6, "a", "net-a")
			s.offers(7, "n1", 1)
			s.lives(8, "b", "n1", "net-b")
		}, nil},
		"nothing where the node was gone a moment before the binding": {func(s *script) {
			s.offers(0, "n1", 1)
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.auditLine(2.9, "delete", "admin", map[string]string{"resource": "nodes", "name": "n1"}, nil, nil)
			s.bind(3, "a", "n1", "net-a")
			s.release(4, "a", "net-a")
			s.offers(5, "n1", 1)
		}, nil},
		"a release in the second life of a node": {func(s *script) {
			s.offers(0, "n1", 1)
			s.auditLine(0.2, "delete", "admin", map[string]string{"resource": "nodes", "name": "n1"}, nil, nil)
			s.offers(0.5, "n1", 1)
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.release(6, "a", "net-a")
		}, map[class]int{double: 1}},
		"a network of unknown owner in two live pods": {func(s *script) {
			s.network(0.5, "create", "net-x")
			for _, uid := range []string{"a", "b"} {
				s.create(1, uid, 1)
				s.bind(3, uid, "n1", "net-x")
			}
		}, map[class]int{double: 1}},
		"the wrong number of networks of unknown owner": {func(s *script) {
			s.network(0.5, "create", "net-a0")
			s.network(0.5, "create", "net-a1")
			s.network(0.5, "create", "net-b")
			s.create(1, "a", 1)
			s.bind(3, "a", "n1", "net-a0", "net-a1")
			s.create(1, "b", 2)
			s.bind(3, "b", "n1", "net-b")
		}, map[class]int{wrong: 2}},
		"a network in two live pods": {func(s *script) {
			s.lives(1, "a", "n1", "net-x")
			s.lives(4, "b", "n2", "net-x")
		}, map[class]int{double: 1}},
		"a network in two live pods that the mock swears it never gave": {func(s *script) {
			s.lives(1, "a", "n1", "net-a")
			s.create(2, "b", 1)
			s.bind(5, "b", "n2", "net-a")
			s.ends(6, "b", corev1.ConditionFalse)
		}, map[class]int{double: 1}},
		"a network handed out twice before anybody uses it": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-x")
			s.ensure(3, "b", "n1", "net-x")
			s.release(4, "a", "net-x")
			s.release(4, "b", "net-x")
		}, map[class]int{double: 1}},
		"a release before the containers have stopped": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.release(8, "a", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
		}, map[class]int{double: 1}},
		"a release while the sandbox is still there": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.ends(7, "a", corev1.ConditionTrue)
			s.release(8, "a", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
		}, map[class]int{double: 1}},
		"a release that only the cluster shows": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.network(8, "delete", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
		}, map[class]int{double: 1}},
		"a binding with networks that were given back": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.release(3, "a", "net-a")
			s.bind(4, "a", "n1", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
		}, map[class]int{double: 1}},
		"a leak": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
		}, map[class]int{leaked: 1}},
		"a leak by an ensure that came after the release": {func(s *script) {
			s.create(1, "a", 1)
			s.ensure(2, "a", "n1", "net-a")
			s.release(3, "a", "net-a")
			s.ensure(4, "a", "n1", "net-a")
		}, map[class]int{leaked: 1}},
		"too few networks": {func(s *script) {
			s.create(1, "a", 2)
			s.ensure(2, "a", "n1", "net-a")
			s.bind(3, "a", "n1", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
			s.release(10, "a", "net-a")
		}, map[class]int{wrong: 1}},
		"one network twice": {func(s *script) { s.lives(1, "a", "n1", "net-a", "net-a") }, map[class]int{wrong: 1}},
		"a network of another pool": {func(s *script) {
			s.lives(1, "a", "n1", "net-a")
			s.mock[0] = strings.ReplaceAll(s.mock[0], vfPool, pfPool)
		}, map[class]int{wrong: 1}},
		"a network that nobody made": {func(s *script) {
			s.create(1, "a", 1)
			s.bind(3, "a", "n1", "net-a")
			s.ends(9, "a", corev1.ConditionFalse)
		}, map[class]int{wrong: 1}},
		"a pod that slipped past admission": {func(s *script) {
			pod := rdmaPod("a", 1)
			pod.Namespace, pod.Finalizers, pod.Annotations = namespaces[0], nil, map[string]string{rdma.VFAnnotation: "1"}
			s.pod(5, "create", "", pod)
		}, map[class]int{wrong: 1}},
		"nothing in a pod that was created while its namespace had no label": {func(s *script) {
			pod := rdmaPod("a", 1)
			pod.Namespace, pod.Finalizers, pod.Annotations = namespaces[0], nil, map[string]string{rdma.VFAnnotation: "1"}
			s.pod(5, "create", "", pod)
			s.more = append(s.more, event{Kind: unlabelled, From: at(4), To: at(4.5), Pod: namespaces[0]})
		}, nil},
		"a placement beyond what the node offers": {func(s *script) {
			s.offers(0, "n1", 2)
			s.lives(1, "a", "n1", "net-a0", "net-a1")
			s.lives(2, "b", "n1", "net-b")
		}, map[class]int{overcommitted: 1}},
		"a placement long after the node shrank": {func(s *script) {
			s.offers(0, "n1", 2)
			s.offers(5, "n1", 0)
			s.lives(6, "a", "n1", "net-a")
		}, map[class]int{overcommitted: 1}},
		"nothing in a placement right after the node shrank": {func(s *script) {
			s.offers(0, "n1", 2)
			s.offers(7, "n1", 0)
			s.lives(6, "a", "n1", "net-a")
		}, nil},
		"nothing in a placement by a scheduler that could not see the node shrink": {func(s *script) {
			s.offers(0, "n1", 2)
			s.offers(3, "n1", 0)
			s.more = append(s.more, event{Kind: blind, Source: fromDriver, From: at(2), To: at(9)})
			s.lives(6, "a", "n1", "net-a")
		}, nil},
		"nothing in a placement by a scheduler whose watch was not back yet": {func(s *script) {
			s.offers(0, "n1", 2)
			s.offers(3, "n1", 0)
			s.more = append(s.more, event{Kind: blind, Source: fromDriver, From: at(2), To: at(3), Text: "kill kube-apiserver"})
			s.auditWatch(7)
			s.lives(5.5, "a", "n1", "net-a")
		}, nil},
		"a placement long after the scheduler's watch was back": {func(s *script) {
			s.offers(0, "n1", 2)
			s.offers(3, "n1", 0)
			s.more = append(s.more, event{Kind: blind, Source: fromDriver, From: at(2), To: at(3), Text: "kill kube-apiserver"})
			s.auditWatch(7)
			s.lives(9, "a", "n1", "net-a")
		}, map[class]int{overcommitted: 1}},
		"nothing in a placement while the node grew": {func(s *script) {
			s.offers(0, "n1", 1)
			s.offers(4.5, "n1", 2)
			s.lives(1, "a", "n1", "net-a")
			s.lives(2, "b", "n1", "net-b")
		}, nil},
		"nothing in a placement where devices were freed": {func(s *script) {
			s.offers(0, "n1", 1)
			s.lives(1, "a", "n1", "net-a")
			s.lives(10, "b", "n1", "net-b")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{t: t}
			tc.play(s)
			v := checkHistory(s.events(), func(string) bool { return false })
			r := &result{violations: v.Violations}
			for _, c := range []class{leaked, double, wrong, stuck, overcommitted, drift} {
				assert.Equal(t, tc.want[c], r.count(c), "%s: %v", c, v.Violations)
			}
		})
	}
}

func TestTheCheckerCounts(t *testing.T) {
	s := &script{t: t}
	s.lives(1, "a", "n1", "net-a")
	s.lives(1, "b", "n1", "net-b")
	s.create(2, "never-placed", 1)
	v := checkHistory(s.events(), func(string) bool { return false })
	assert.Equal(t, 2, v.Placed)
	assert.Equal(t, 2, v.Released)
}

func TestALeakIsForgivenOnlyIfNothingIsThere(t *testing.T) {
	s := &script{t: t}
	s.create(1, "a", 1)
	s.ensure(2, "a", "n1", "net-a")
	assert.Empty(t, checkHistory(s.events(), func(string) bool { return true }).Violations)
	assert.Empty(t, checkHistory(s.events(), nil).Violations, "the history goes on")
}

func TestALineThatAKilledServerLeftUnfinishedIsNotTheNextOnesEnd(t *testing.T) {
	s := &script{t: t}
	s.create(1, "a", 1)
	s.audit[0] = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"pa` + s.audit[0]
	line, err := json.Marshal(map[string]any{})
	require.NoError(t, err)
	s.audit = append(s.audit, string(line))
	// encoding/json sorts a map's keys, the API server begins with kind.
	s.audit[0] = strings.Replace(s.audit[0], `{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"pa{`, `{"kind":"Event","apiVersion":"audit.k8s.io/v1","verb":"pa{"kind":"Event",`, 1)
	require.Len(t, s.events(), 1)
}
