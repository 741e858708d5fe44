package feed

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// shown has one of everything: poolA with a figure in each field, poolB overcommitted by a device plugin that is away.
func shown(t *testing.T) *pools.Ledger {
	t.Helper()
	l := pools.NewLedger(nil)
	policy := config(t, "").Policy
	n2 := node("n2", poolB, 8)
	n2.Status.Allocatable = resources(poolB, 1)
	gated, ending := pod("g", "g", "", poolA, 2), pod("e", "e", "n1", poolA, 3)
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gate"}}
	ending.DeletionTimestamp = &metav1.Time{}
	l.SetNode(node("n1", poolA, 16))
	l.SetNode(n2)
	for _, p := range []*corev1.Pod{pod("p", "p", "n1", poolA, 4), pod("w", "w", "", poolA, 1), gated, ending, pod("b", "b", "n2", poolB, 7)} {
		charge, ok := pools.ChargeOf(p, policy)
		require.True(t, ok)
		l.SetPod(charge)
	}
	_, err := l.Choose(config(t, ""), pools.Demand{Intent: rdma.Intent{{Type: rdma.VF, Count: 1}}, Pod: &corev1.Pod{}, AdmissionID: "id"})
	require.NoError(t, err)
	return l
}

const exposition = `
# HELP rdma_pool_allocatable_devices Devices that Ready, schedulable nodes offer.
# TYPE rdma_pool_allocatable_devices gauge
rdma_pool_allocatable_devices{pool="a.com/vf"} 16
rdma_pool_allocatable_devices{pool="b.com/vf"} 1
# HELP rdma_pool_available_devices Allocatable minus requested, at least 0.
# TYPE rdma_pool_available_devices gauge
rdma_pool_available_devices{pool="a.com/vf"} 9
rdma_pool_available_devices{pool="b.com/vf"} 0
# HELP rdma_pool_below_allocated 1 while some node's allocatable is below what its pods hold, as while a device plugin restarts.
# TYPE rdma_pool_below_allocated gauge
rdma_pool_below_allocated{pool="a.com/vf"} 0
rdma_pool_below_allocated{pool="b.com/vf"} 1
# HELP rdma_pool_drift_total Differences between the ledger and a recount that had to be mended, by kind: sums or missed events.
# TYPE rdma_pool_drift_total counter
rdma_pool_drift_total{kind="missed"} 0
rdma_pool_drift_total{kind="sums"} 0
# HELP rdma_pool_free_devices Devices that can be used now: available minus releasing, at least 0.
# TYPE rdma_pool_free_devices gauge
rdma_pool_free_devices{pool="a.com/vf"} 6
rdma_pool_free_devices{pool="b.com/vf"} 0
# HELP rdma_pool_gated_devices Devices requested by pods held by scheduling gates.
# TYPE rdma_pool_gated_devices gauge
rdma_pool_gated_devices{pool="a.com/vf"} 2
rdma_pool_gated_devices{pool="b.com/vf"} 0
# HELP rdma_pool_overcommitted 1 while more is requested than is allocatable.
# TYPE rdma_pool_overcommitted gauge
rdma_pool_overcommitted{pool="a.com/vf"} 0
rdma_pool_overcommitted{pool="b.com/vf"} 1
# HELP rdma_pool_releasing_devices Devices still held by pods being deleted.
# TYPE rdma_pool_releasing_devices gauge
rdma_pool_releasing_devices{pool="a.com/vf"} 3
rdma_pool_releasing_devices{pool="b.com/vf"} 0
# HELP rdma_pool_requested_devices Devices requested by pods on those nodes and by pods not yet bound, without pods being deleted.
# TYPE rdma_pool_requested_devices gauge
rdma_pool_requested_devices{pool="a.com/vf"} 7
rdma_pool_requested_devices{pool="b.com/vf"} 7
# HELP rdma_pool_reserved_devices Devices promised at admission to pods that the informer does not show yet.
# TYPE rdma_pool_reserved_devices gauge
rdma_pool_reserved_devices{pool="a.com/vf"} 1
rdma_pool_reserved_devices{pool="b.com/vf"} 0
# HELP rdma_pool_unbound_devices Devices requested by pods not yet bound.
# TYPE rdma_pool_unbound_devices gauge
rdma_pool_unbound_devices{pool="a.com/vf"} 3
rdma_pool_unbound_devices{pool="b.com/vf"} 0
`

func TestMetricsShowTheLedger(t *testing.T) {
	l := shown(t)
	m := NewMetrics(l)
	require.NoError(t, testutil.CollectAndCompare(m, strings.NewReader(exposition)))
	problems, err := testutil.CollectAndLint(m)
	require.NoError(t, err)
	assert.Empty(t, problems)

	m.addDrift(pools.Drift{Sums: 2, Missed: 1})
	l.DeletePod("b")
	l.DeleteNode("n2")
	var kept []string
	for line := range strings.Lines(exposition) {
		if !strings.Contains(line, "b.com/vf") {
			kept = append(kept, line)
		}
	}
	want := strings.NewReplacer(`{kind="missed"} 0`, `{kind="missed"} 1`, `{kind="sums"} 0`, `{kind="sums"} 2`).Replace(strings.Join(kept, ""))
	require.NoError(t, testutil.CollectAndCompare(m, strings.NewReader(want)), "the series of a pool that is gone must not stay")
}

func TestLogHasTheWordsThatOperatorsGrepFor(t *testing.T) {
	var log output
	logUsage(log.logger(), shown(t).Usage())
	text := log.String()
	for _, want := range []string{
		`"Refreshed resource pools:" pools=2`,
		`"  a.com/vf" allocatable=16 requested=7 available=9 releasing=3 free=6`,
		`"  b.com/vf" allocatable=1 requested=7 available=0 releasing=0 free=0`,
		`Resource b.com/vf has allocatable below what is allocated; is a device plugin restarting?" allocatable=1 requested=7`,
		`Resource b.com/vf has negative available capacity; it is taken as 0" allocatable=1 requested=7`,
	} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "Resource a.com/vf", "a pool in order must not be warned about")
}

func TestPage(t *testing.T) {
	handler := Handler(shown(t))
	ask := func(method, url string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(method, url, nil))
		return w
	}
	t.Run("all pools", func(t *testing.T) {
		w := ask(http.MethodGet, "/pools")
		require.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
		assert.JSONEq(t, `{"pools": [
			{"pool": "a.com/vf", "allocatable": 16, "requested": 7, "unbound": 3, "gated": 2, "releasing": 3, "reserved": 1,
			 "available": 9, "free": 6, "overcommitted": false, "belowAllocated": false, "nodes": 1},
			{"pool": "b.com/vf", "allocatable": 1, "requested": 7, "unbound": 0, "gated": 0, "releasing": 0, "reserved": 0,
			 "available": 0, "free": 0, "overcommitted": true, "belowAllocated": true, "nodes": 1}]}`, w.Body.String())
	})
	t.Run("one pool node by node", func(t *testing.T) {
		assert.JSONEq(t, `{"nodes": [{"node": "n1", "pool": "a.com/vf", "eligible": true, "allocatable": 16, "requested": 4, "releasing": 3, "free": 9}]}`,
			ask(http.MethodGet, "/pools?pool=a.com/vf").Body.String())
	})
	t.Run("a pool that nobody offers has no nodes, and is no null", func(t *testing.T) {
		w := ask(http.MethodGet, "/pools?pool=x.com/y")
		assert.Equal(t, http.StatusOK, w.Code)
		assert.JSONEq(t, `{"nodes": []}`, w.Body.String())
	})
	t.Run("an empty ledger has no pools, and is no null", func(t *testing.T) {
		w := httptest.NewRecorder()
		Handler(pools.NewLedger(nil)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/pools", nil))
		assert.JSONEq(t, `{"pools": []}`, w.Body.String())
	})
	t.Run("HEAD is answered", func(t *testing.T) {
		assert.Equal(t, http.StatusOK, ask(http.MethodHead, "/pools").Code)
	})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, "BREW"} {
		t.Run(method+" must not be answered", func(t *testing.T) {
			w := ask(method, "/pools")
			assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
			assert.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
			assert.Equal(t, "method "+method+" is not allowed; accepted are GET and HEAD\n", w.Body.String())
			assert.False(t, json.Valid(w.Body.Bytes()))
		})
	}
}
