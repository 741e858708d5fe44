package feed

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"tenant.network/tenant-webhook/pkg/pools"
)

// logUsage writes the lines that operators grep for.
func logUsage(logger klog.Logger, all []pools.Usage) {
	logger.Info("Refreshed resource pools:", "pools", len(all))
	for _, u := range all {
		logger.Info("  "+string(u.Pool), "allocatable", u.Allocatable, "requested", u.Requested, "available", u.Available,
			"releasing", u.Releasing, "free", u.Free)
		if u.BelowAllocated {
			logger.Info("Resource "+string(u.Pool)+" has allocatable below what is allocated; is a device plugin restarting?",
				"allocatable", u.Allocatable, "requested", u.Requested)
		}
		if u.Overcommitted {
			logger.Info("Resource "+string(u.Pool)+" has negative available capacity; it is taken as 0",
				"allocatable", u.Allocatable, "requested", u.Requested)
		}
	}
}

// Metrics shows the ledger. Series of pools are made at each scrape, so that those of a pool that is gone go with it.
type Metrics struct {
	usage func() []pools.Usage
	drift *prometheus.CounterVec
}

var poolLabels = []string{"pool"}

var poolGauges = []struct {
	desc  *prometheus.Desc
	value func(pools.Usage) int64
}{
	{poolDesc("rdma_pool_allocatable_devices", "Devices that Ready, schedulable nodes offer."), func(u pools.Usage) int64 { return u.Allocatable }},
	{poolDesc("rdma_pool_requested_devices", "Devices requested by pods on those nodes and by pods not yet bound, without pods being deleted."), func(u pools.Usage) int64 { return u.Requested }},
	{poolDesc("rdma_pool_unbound_devices", "Devices requested by pods not yet bound."), func(u pools.Usage) int64 { return u.Unbound }},
	{poolDesc("rdma_pool_gated_devices", "Devices requested by pods held by scheduling gates."), func(u pools.Usage) int64 { return u.Gated }},
	{poolDesc("rdma_pool_releasing_devices", "Devices still held by pods being deleted."), func(u pools.Usage) int64 { return u.Releasing }},
	{poolDesc("rdma_pool_reserved_devices", "Devices promised at admission to pods that the informer does not show yet."), func(u pools.Usage) int64 { return u.Reserved }},
	{poolDesc("rdma_pool_available_devices", "Allocatable minus requested, at least 0."), func(u pools.Usage) int64 { return u.Available }},
	{poolDesc("rdma_pool_free_devices", "Devices that can be used now: available minus releasing, at least 0."), func(u pools.Usage) int64 { return u.Free }},
	{poolDesc("rdma_pool_overcommitted", "1 while more is requested than is allocatable."), func(u pools.Usage) int64 { return flag(u.Overcommitted) }},
	{poolDesc("rdma_pool_below_allocated", "1 while some node's allocatable is below what its pods hold, as while a device plugin restarts."), func(u pools.Usage) int64 { return flag(u.BelowAllocated) }},
}

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, poolLabels, nil)
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// NewMetrics returns a collector for the ledger.
func NewMetrics(ledger *pools.Ledger) *Metrics {
	m := &Metrics{usage: ledger.Usage, drift: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rdma_pool_drift_total",
		Help: "Differences between the ledger and a recount that had to be mended, by kind: sums or missed events.",
	}, []string{"kind"})}
	m.addDrift(pools.Drift{})
	return m
}

func (m *Metrics) addDrift(drift pools.Drift) {
	m.drift.WithLabelValues("sums").Add(float64(drift.Sums))
	m.drift.WithLabelValues("missed").Add(float64(drift.Missed))
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(descs chan<- *prometheus.Desc) {
	m.drift.Describe(descs)
	for _, gauge := range poolGauges {
		descs <- gauge.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	m.drift.Collect(metrics)
	for _, u := range m.usage() {
		for _, gauge := range poolGauges {
			metrics <- prometheus.MustNewConstMetric(gauge.desc, prometheus.GaugeValue, float64(gauge.value(u)), string(u.Pool))
		}
	}
}

// Handler serves the ledger as JSON: all pools, or with ?pool=NAME one pool node by node.
func Handler(ledger *pools.Ledger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method "+r.Method+" is not allowed; accepted are GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		var page any = map[string]any{"pools": ledger.Usage()}
		if pool := r.URL.Query().Get("pool"); pool != "" {
			page = map[string]any{"nodes": ledger.NodeUsage(corev1.ResourceName(pool))}
		}
		// The header is out already; a client that went away is the only way this fails.
		_ = encoder.Encode(page)
	})
}
