package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func TestReservationsOfPodsThatNeverAppear(t *testing.T) {
	const pool = "mellanox.com/mlnx_sriov_rdma"
	numbered := func(i *Injector) {
		n := 0
		i.NewID = func() string { n++; return fmt.Sprintf("%016d", n) }
	}
	t.Run("a creation that is tried again and again reserves once", func(t *testing.T) {
		injector, ledger := newInjector(t)
		numbered(injector)
		for range 100 {
			result, errs := injector.Inject(podFrom(t, plain), "tenant-a", false)
			require.Empty(t, errs)
			require.Empty(t, result.Warnings, "an attempt must not wait for its predecessor's devices")
		}
		require.Equal(t, int64(2), ledger.UsageOf(pool).Reserved)
	})
	t.Run("pods of one name in two namespaces must not replace each other", func(t *testing.T) {
		injector, ledger := newInjector(t)
		numbered(injector)
		for _, namespace := range []string{"tenant-a", "tenant-b"} {
			_, errs := injector.Inject(podFrom(t, plain), namespace, false)
			require.Empty(t, errs)
		}
		require.Equal(t, int64(4), ledger.UsageOf(pool).Reserved)
	})
	t.Run("pods of one template must not replace each other", func(t *testing.T) {
		injector, ledger := newInjector(t)
		numbered(injector)
		for range 3 {
			_, errs := injector.Inject(podFrom(t, strings.Replace(plain, "name: p", "generateName: p-", 1)), "tenant-a", false)
			require.Empty(t, errs)
		}
		require.Equal(t, int64(6), ledger.UsageOf(pool).Reserved)
	})
	t.Run("a pod that a second pass refuses gives back what the first reserved", func(t *testing.T) {
		injector, ledger := newInjector(t)
		first, errs := injector.Inject(podFrom(t, plain), "tenant-a", false)
		require.Empty(t, errs)
		first.Pod.Annotations[rdma.VFAnnotation] = "1" // by another injector
		_, errs = injector.Inject(first.Pod, "tenant-a", true)
		require.NotEmpty(t, errs)
		require.Equal(t, int64(2), ledger.UsageOf(pool).Reserved, "a dry run gives nothing back")
		_, errs = injector.Inject(first.Pod, "tenant-a", false)
		require.NotEmpty(t, errs)
		require.Zero(t, ledger.UsageOf(pool).Reserved)
	})
}

func TestAnnotationsMustLeaveRoomForTheNetworks(t *testing.T) {
	const limit = 256<<10 - wordsRoom
	long := func(count, size int) string {
		return fmt.Sprintf("metadata: {annotations: {rdma.vf: \"%d\", a: %s}}\nspec: {containers: [{name: a}]}", count, strings.Repeat("x", size))
	}
	injector, ledger := newInjector(t)
	injector.NewID = nil
	_, errs := injector.Inject(podFrom(t, long(8, limit-8*networkRoom-len("rdma.vf8a"))), "tenant-a", false)
	require.Empty(t, errs)
	before := ledger.UsageOf("mellanox.com/mlnx_sriov_rdma").Reserved
	_, errs = injector.Inject(podFrom(t, long(8, limit-8*networkRoom-len("rdma.vf8a")+1)), "tenant-a", false)
	require.Len(t, errs, 1)
	require.EqualError(t, errs[0], "metadata.annotations: Invalid value: must be at most 258584 bytes together, not 258585: the pod's networks are added to them later")
	require.Equal(t, before, ledger.UsageOf("mellanox.com/mlnx_sriov_rdma").Reserved)
	t.Run("copies that are written anew do not count", func(t *testing.T) {
		_, errs := injector.Inject(podFrom(t, strings.Replace(long(1, 200<<10), ", a: ", ", tenant.network/forged: \""+strings.Repeat("y", 200<<10)+"\", a: ", 1)), "tenant-a", false)
		require.Empty(t, errs)
	})
}
