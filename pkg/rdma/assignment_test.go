package rdma_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	vfPool = corev1.ResourceName("mellanox.com/mlnx_sriov_rdma")
	pfPool = corev1.ResourceName("mellanox.com/mlnx_pf_rdma")
)

// containers makes one container for each text, such as "mellanox.com/mlnx_pf_rdma=1".
func containers(restart *corev1.ContainerRestartPolicy, texts ...string) []corev1.Container {
	all := make([]corev1.Container, len(texts))
	for i, text := range texts {
		all[i] = corev1.Container{Name: fmt.Sprintf("c%d", i), RestartPolicy: restart}
		for pair := range strings.FieldsSeq(text) {
			name, quantity, _ := strings.Cut(pair, "=")
			if all[i].Resources.Requests == nil {
				all[i].Resources.Requests = corev1.ResourceList{}
			}
			all[i].Resources.Requests[corev1.ResourceName(name)] = resource.MustParse(quantity)
		}
	}
	return all
}

// admitted is a pod as admission leaves it.
func admitted(a rdma.Assignment, requests ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: a.Annotations(), Finalizers: []string{"example.com/theirs", rdma.Finalizer}},
		Spec:       corev1.PodSpec{Containers: containers(nil, requests...)},
	}
}

func TestAnAssignmentIsReadAsItWasWritten(t *testing.T) {
	for _, tc := range []struct {
		name     string
		want     rdma.Assignment
		requests []string
	}{
		{"one virtual function", rdma.Assignment{{rdma.VF, vfPool, 1}}, []string{"mellanox.com/mlnx_sriov_rdma=1"}},
		{"several physical functions", rdma.Assignment{{rdma.PF, pfPool, 8}}, []string{"mellanox.com/mlnx_pf_rdma=8 cpu=1"}},
		{"both types from two pools", rdma.Assignment{{rdma.VF, vfPool, 1}, {rdma.PF, pfPool, 2}}, []string{"mellanox.com/mlnx_sriov_rdma=1 mellanox.com/mlnx_pf_rdma=2"}},
		{"both types from one pool are its sum", rdma.Assignment{{rdma.VF, vfPool, 1}, {rdma.PF, vfPool, 2}}, []string{"mellanox.com/mlnx_sriov_rdma=3"}},
		{"what several containers request is added up", rdma.Assignment{{rdma.VF, vfPool, 3}}, []string{"mellanox.com/mlnx_sriov_rdma=1", "cpu=1", "mellanox.com/mlnx_sriov_rdma=2"}},
		{"requests for other resources do not matter", rdma.Assignment{{rdma.VF, vfPool, 1}}, []string{"mellanox.com/mlnx_sriov_rdma=1 mellanox.com/mlnx_pf_rdma=5"}},
		{"a quantity in another spelling is the same number", rdma.Assignment{{rdma.VF, vfPool, 1000}}, []string{"mellanox.com/mlnx_sriov_rdma=1k"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := admitted(tc.want, tc.requests...)
			got, err := rdma.ReadAssignment(pod)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
			again, ours := rdma.Ours(pod)
			assert.True(t, ours)
			assert.Equal(t, tc.want, again)
		})
	}
}

// TestInitContainersAreAMaximumAndSidecarsASum: cases W31, S47 of docs/cases.md.
func TestInitContainersAreAMaximumAndSidecarsASum(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	one := rdma.Assignment{{rdma.VF, vfPool, 2}}
	for _, tc := range []struct {
		name string
		init []corev1.Container
		app  string
		ours bool
	}{
		{"an init container that asks for less does not matter", containers(nil, "mellanox.com/mlnx_sriov_rdma=1"), "mellanox.com/mlnx_sriov_rdma=2", true},
		{"two init containers run one after the other", containers(nil, "mellanox.com/mlnx_sriov_rdma=2", "mellanox.com/mlnx_sriov_rdma=2"), "mellanox.com/mlnx_sriov_rdma=1", true},
		{"an init container that asks for more must not pass", containers(nil, "mellanox.com/mlnx_sriov_rdma=3"), "mellanox.com/mlnx_sriov_rdma=2", false},
		{"a sidecar is added", containers(&always, "mellanox.com/mlnx_sriov_rdma=1"), "mellanox.com/mlnx_sriov_rdma=1", true},
		{"a sidecar that makes it too many must not pass", containers(&always, "mellanox.com/mlnx_sriov_rdma=1"), "mellanox.com/mlnx_sriov_rdma=2", false},
		{"a sidecar runs beside the init containers after it", append(containers(&always, "mellanox.com/mlnx_sriov_rdma=1"), containers(nil, "mellanox.com/mlnx_sriov_rdma=1")...),
			"mellanox.com/mlnx_sriov_rdma=1", true},
		{"a sidecar and the init container after it must not be too many", append(containers(&always, "mellanox.com/mlnx_sriov_rdma=1"), containers(nil, "mellanox.com/mlnx_sriov_rdma=2")...),
			"mellanox.com/mlnx_sriov_rdma=1", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := admitted(one, tc.app)
			pod.Spec.InitContainers = tc.init
			_, ours := rdma.Ours(pod)
			assert.Equal(t, tc.ours, ours)
		})
	}
}

// TestReadAssignmentMustNotBelieve: cases S19, S42 of docs/cases.md.
func TestReadAssignmentMustNotBelieve(t *testing.T) {
	words := func(types, pools, counts string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{rdma.ResourceTypeAnnotation: types, rdma.ResourcePoolAnnotation: pools, rdma.ResourceCountAnnotation: counts}
		}
	}
	without := func(key string) func(*corev1.Pod) { return func(pod *corev1.Pod) { delete(pod.Annotations, key) } }
	const p = string(vfPool)
	for _, tc := range []struct {
		name        string
		change      func(*corev1.Pod)
		want        string
		notAssigned bool
	}{
		{"a pod without our finalizer", func(pod *corev1.Pod) { pod.Finalizers = []string{"tenant.network/cleanup2"} }, "finalizer tenant.network/cleanup is missing", true},
		{"a pod without annotations", func(pod *corev1.Pod) { pod.Annotations = nil }, "annotation tenant.network/resource-pool is missing", true},
		{"forged annotations without paying requests", func(pod *corev1.Pod) { pod.Spec.Containers = containers(nil, "cpu=1") },
			"annotation tenant.network/resource-count says 2 of mellanox.com/mlnx_sriov_rdma, but the containers request 0", false},
		{"fewer requested than said", func(pod *corev1.Pod) { pod.Spec.Containers = containers(nil, p+"=1") }, "says 2 of mellanox.com/mlnx_sriov_rdma, but the containers request 1", false},
		{"more requested than said", func(pod *corev1.Pod) { pod.Spec.Containers = containers(nil, p+"=2", p+"=1") }, "but the containers request 3", false},
		{"limits without requests", func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0].Resources
			c.Requests, c.Limits = nil, c.Requests
		}, "but the containers request 0", false},
		{"a sum that wraps around to the number", func(pod *corev1.Pod) {
			pod.Spec.Containers = containers(nil, p+"=9223372036854775807", p+"=9223372036854775807", p+"=4")
		}, "but the containers request 18446744073709551618", false},
		{"counts that wrap around", words("vf,pf", p+","+p, "9223372036854775807,9223372036854775807"), "must be whole numbers", false},
		{"no type", without(rdma.ResourceTypeAnnotation), "must be vf, pf or vf,pf", false},
		{"no count", without(rdma.ResourceCountAnnotation), "must be whole numbers", false},
		{"an empty pool", words("vf", "", "2"), "says 2 of , but the containers request 0", false},
		{"an unknown type", words("sf", p, "2"), `annotation tenant.network/resource-type="sf" must be vf, pf or vf,pf`, false},
		{"a type in capitals", words("VF", p, "2"), "must be vf, pf or vf,pf", false},
		{"types with a blank", words("vf, pf", p+","+p, "1,1"), "must be vf, pf or vf,pf", false},
		{"types in the wrong order", words("pf,vf", p+","+p, "1,1"), "must be vf, pf or vf,pf", false},
		{"one type twice", words("vf,vf", p+","+p, "1,1"), "must be vf, pf or vf,pf", false},
		{"three entries", words("vf,pf,vf", p+","+p+","+p, "1,1,1"), "must have one entry for each type", false},
		{"more pools than types", words("vf", p+","+p, "1,1"), "must have one entry for each type", false},
		{"more counts than types", words("vf", p, "1,1"), "must have one entry for each type", false},
		{"a count of 0", words("vf", p, "0"), `annotation tenant.network/resource-count="0" must be whole numbers`, false},
		{"a count with a suffix", words("vf", p, "2k"), "must be whole numbers", false},
		{"a count with a sign", words("vf", p, "+2"), "must be whole numbers", false},
		{"a split that does not add up to the requests", words("vf,pf", p+","+p, "2,1"), "says 3 of mellanox.com/mlnx_sriov_rdma, but the containers request 2", false},
		{"one of two pools without requests", words("vf,pf", p+",a.com/b", "2,1"), "says 1 of a.com/b, but the containers request 0", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := admitted(rdma.Assignment{{rdma.VF, vfPool, 2}}, p+"=2")
			tc.change(pod)
			assignment, err := rdma.ReadAssignment(pod)
			require.ErrorContains(t, err, tc.want)
			assert.Equal(t, tc.notAssigned, strings.Contains(err.Error(), rdma.ErrNotAssigned.Error()))
			if tc.notAssigned {
				require.ErrorIs(t, err, rdma.ErrNotAssigned)
			}
			assert.Empty(t, assignment)
			_, ours := rdma.Ours(pod)
			assert.False(t, ours)
		})
	}
}

func TestReadAssignmentMustNotRepeatALongText(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for _, key := range []string{rdma.ResourceTypeAnnotation, rdma.ResourcePoolAnnotation, rdma.ResourceCountAnnotation} {
		pod := admitted(rdma.Assignment{{rdma.VF, vfPool, 1}}, string(vfPool)+"=1")
		pod.Annotations[key] = long
		_, err := rdma.ReadAssignment(pod)
		require.Error(t, err)
		assert.Less(t, len(err.Error()), 600, key)
	}
}

func TestTotals(t *testing.T) {
	a := rdma.Assignment{{rdma.VF, vfPool, 1}, {rdma.PF, pfPool, 2}}
	assert.Equal(t, int64(3), a.Devices())
	assert.Equal(t, int64(1), a.Total(vfPool))
	assert.Zero(t, a.Total("a.com/b"))
	assert.Equal(t, []corev1.ResourceName{vfPool, pfPool}, a.Pools())
	both := rdma.Assignment{{rdma.VF, vfPool, 1}, {rdma.PF, vfPool, 2}}
	assert.Equal(t, int64(3), both.Total(vfPool))
	assert.Equal(t, []corev1.ResourceName{vfPool}, both.Pools())
	assert.Empty(t, rdma.Assignment(nil).Pools())
}

func FuzzReadAssignment(f *testing.F) {
	f.Add("vf", string(vfPool), "1", int64(1), true)
	f.Add("vf,pf", "a/b,a/b", "1,2", int64(3), true)
	f.Add("vf,pf", "a/b,c/d", "9223372036854775807,9223372036854775807", int64(-2), true)
	f.Add("", "", "", int64(0), true)
	f.Add(",", ",", ",", int64(0), true)
	f.Add("pf,vf", "a/b", "1", int64(1), false)
	f.Fuzz(func(t *testing.T, types, pools, counts string, requested int64, finalizer bool) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			rdma.ResourceTypeAnnotation: types, rdma.ResourcePoolAnnotation: pools, rdma.ResourceCountAnnotation: counts}}}
		if finalizer {
			pod.Finalizers = []string{rdma.Finalizer}
		}
		c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
		for pool := range strings.SplitSeq(pools, ",") {
			c.Resources.Requests[corev1.ResourceName(pool)] = *resource.NewQuantity(requested, resource.DecimalSI)
		}
		pod.Spec.Containers = []corev1.Container{c}
		assignment, err := rdma.ReadAssignment(pod)
		if err != nil {
			require.Empty(t, assignment)
			require.Less(t, len(err.Error()), 4096)
			return
		}
		require.True(t, finalizer)
		require.NotEmpty(t, assignment)
		require.GreaterOrEqual(t, assignment.Devices(), int64(len(assignment)))
		for _, pool := range assignment.Pools() {
			require.Equal(t, requested, assignment.Total(pool))
		}
		// Canonical: what was believed is what would be written.
		require.Equal(t, pod.Annotations, assignment.Annotations())
	})
}
