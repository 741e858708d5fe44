package main

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"tenant.network/tenant-webhook/pkg/admission"
	"tenant.network/tenant-webhook/test/perf/fixture"
)

// result is one line of the output. The baselines are reviews a second under the same load.
type result struct {
	nodes, pods int
	pinned      bool
	where       string
	ours        load
	// bare is an empty webhook on tenant-webhook's server, empty one on controller-runtime's.
	bare, empty, scan, apiReader float64
	// ratios are ours to empty, turn by turn, the smallest first.
	ratios []float64
}

// Where the reviews come from.
const (
	whereProcess = "process"
	whereTLS     = "tls"
)

func (r result) String() string {
	affinity := "no"
	if r.pinned {
		affinity = "yes"
	}
	reader := "none"
	if r.apiReader > 0 {
		reader = fmt.Sprintf("%.0f", r.apiReader)
	}
	return fmt.Sprintf("admission: nodes=%d pods=%d affinity=%s where=%s p50=%v p99=%v max=%v rps=%.0f ratio=%.2f spread=%.2f..%.2f empty_rps=%.0f bare_rps=%.0f scan_rps=%.1f apiread_rps=%s",
		r.nodes, r.pods, affinity, r.where, r.ours.p50, r.ours.p99, r.ours.most, r.ours.rps, r.ratios[len(r.ratios)/2], r.ratios[0], r.ratios[len(r.ratios)-1], r.empty, r.bare, r.scan, reader)
}

// rounds is how often each handler has its turn; the medians count.
const rounds = 15

// measure puts one cluster's handler and its baselines under the same load, by turns, so that what else the machine does
// meets them alike. client may be nil.
func measure(nodes, pods int, pinned bool, client kubernetes.Interface, duration time.Duration) ([]result, error) {
	cluster := fixture.NewCluster(nodes, pods, 90)
	ledger := cluster.Ledger()
	l := &lives{ledger: ledger}
	ours, err := newHandler(ledger, l.newID)
	if err != nil {
		return nil, err
	}
	scan, err := newHandler(scanning{cluster}, nil)
	if err != nil {
		return nil, err
	}
	body, request, err := review(pinned)
	if err != nil {
		return nil, err
	}
	for _, handler := range []ctrladmission.Handler{ours, scan} {
		if err := checkInjected(handler, request); err != nil {
			return nil, err
		}
	}
	webhooks := []webhook{{ours, admission.NewServer}, {empty(), admission.NewServer}, {empty(), library}, {scan, library}}
	if client != nil {
		webhooks = append(webhooks, webhook{reading(client), library})
	}
	var results []result
	for _, where := range []string{whereProcess, whereTLS} {
		loads := make([][]load, 5)
		for range rounds {
			for i, w := range webhooks {
				got, err := w.under(where, body, duration/rounds)
				if err != nil {
					return nil, err
				}
				loads[i] = append(loads[i], got)
			}
		}
		ratios := ratiosOf(loads[0], loads[2])
		results = append(results, result{nodes, pods, pinned, where, median(loads[0]), median(loads[1]).rps, median(loads[2]).rps,
			median(loads[3]).rps, median(loads[4]).rps, ratios})
	}
	return results, nil
}

// ratiosOf compares turn by turn.
func ratiosOf(ours, base []load) []float64 {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i].rps / base[i].rps
	}
	slices.Sort(ratios)
	return ratios
}

// median is the load in the middle by reviews a second, the zero load of none.
func median(loads []load) load {
	if len(loads) == 0 {
		return load{}
	}
	slices.SortFunc(loads, func(a, b load) int { return cmp.Compare(a.rps, b.rps) })
	return loads[len(loads)/2]
}

// webhook is a handler and what serves it over HTTP.
type webhook struct {
	handler ctrladmission.Handler
	server  func(ctrladmission.Handler) http.Handler
}

// library serves as controller-runtime does.
func library(handler ctrladmission.Handler) http.Handler {
	return &ctrladmission.Webhook{Handler: handler}
}

func (w webhook) under(where string, body []byte, duration time.Duration) (load, error) {
	if where == whereTLS {
		return overTLS(w.server(w.handler), body, duration)
	}
	return inProcess(w.server(w.handler), body, duration)
}
