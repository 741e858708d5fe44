package main

import (
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"tenant.network/tenant-webhook/test/perf/fixture"
)

// result is one line of the output. The baselines are reviews a second under the same load.
type result struct {
	nodes, pods            int
	pinned                 bool
	where                  string
	ours                   load
	empty, scan, apiReader float64
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
	return fmt.Sprintf("admission: nodes=%d pods=%d affinity=%s where=%s p50=%v p99=%v max=%v rps=%.0f empty_rps=%.0f scan_rps=%.1f apiread_rps=%s",
		r.nodes, r.pods, affinity, r.where, r.ours.p50, r.ours.p99, r.ours.most, r.ours.rps, r.empty, r.scan, reader)
}

// measure puts one cluster's handler and its baselines under the same load, one after the other and twice, so that what
// else the machine does meets them alike; the better run of each counts. client may be nil.
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
	handlers := []ctrladmission.Handler{ours, empty(), scan}
	if client != nil {
		handlers = append(handlers, reading(client))
	}
	var results []result
	for _, where := range []string{whereProcess, whereTLS} {
		loads := make([]load, 4)
		for range 2 {
			for i, handler := range handlers {
				got, err := under(where, handler, body, request, duration)
				if err != nil {
					return nil, err
				}
				if got.rps > loads[i].rps {
					loads[i] = got
				}
			}
		}
		results = append(results, result{nodes, pods, pinned, where, loads[0], loads[1].rps, loads[2].rps, loads[3].rps})
	}
	return results, nil
}

func under(where string, handler ctrladmission.Handler, body []byte, request ctrladmission.Request, duration time.Duration) (load, error) {
	if where == whereTLS {
		return overTLS(handler, body, duration)
	}
	return inProcess(handler, request, duration)
}
