// Command ledger measures what the accounting of device pools costs: one event, one choice and one recount, beside a
// scan of all nodes and pods. It prints one line a case.
package main

import (
	"fmt"
	"testing"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/test/perf/fixture"
)

// Operations that are measured.
const (
	opEvent   = "event"
	opChoice  = "choice"
	opRecount = "recount"
)

// result is one line of the output.
type result struct {
	op          string
	nodes, pods int
	// ns and allocs are for one operation, baseline is a scan's nanoseconds.
	ns, allocs, baseline int64
}

func (r result) String() string {
	return fmt.Sprintf("ledger: op=%s nodes=%d pods=%d ns=%d allocs=%d baseline_ns=%d", r.op, r.nodes, r.pods, r.ns, r.allocs, r.baseline)
}

// measure runs all operations on one cluster, all of whose pods hold a device.
func measure(nodes, pods int) []result {
	cluster := fixture.NewCluster(nodes, pods, 100)
	ledger := cluster.Ledger()
	scan := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			cluster.Scan(1)
		}
	}).NsPerOp()
	var results []result
	for _, op := range []struct {
		name string
		run  func(*testing.B)
	}{{opEvent, events(ledger, cluster)}, {opChoice, choices(ledger)}, {opRecount, recounts(ledger, cluster)}} {
		measured := testing.Benchmark(op.run)
		results = append(results, result{op.name, nodes, pods, measured.NsPerOp(), measured.AllocsPerOp(), scan})
	}
	return results
}

// events is the life of a pod, one event after the other: it appears, is bound, its deletion begins, it is gone. The
// charges are decoded beforehand, as the informer's transform does.
func events(ledger *pools.Ledger, cluster *fixture.Cluster) func(*testing.B) {
	node := cluster.Nodes[len(cluster.Nodes)/2].Name
	policy := fixture.Config().Policy
	charge := func(node string) pools.Charge {
		charge, _ := pools.ChargeOf(fixture.Holder(-1, node, fixture.FirstPool), policy)
		return charge
	}
	waiting, bound := charge(""), charge(node)
	deleting := bound
	deleting.Deleting = true
	return func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			switch i % 4 {
			case 0:
				ledger.SetPod(waiting)
			case 1:
				ledger.SetPod(bound)
			case 2:
				ledger.SetPod(deleting)
			case 3:
				ledger.DeletePod(bound.UID)
			}
		}
		ledger.DeletePod(bound.UID)
	}
}

// choices reserve nothing, as a dry run does: the reservations of millions of reviews a minute would be no cluster's.
func choices(ledger *pools.Ledger) func(*testing.B) {
	config := fixture.Config()
	demand := pools.Demand{Intent: rdma.Intent{{Type: rdma.VF, Count: 1}}, Pod: fixture.NewPod(-2)}
	return func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ledger.Choose(config, demand); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func recounts(ledger *pools.Ledger, cluster *fixture.Cluster) func(*testing.B) {
	charges := cluster.Charges()
	return func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if drift := ledger.Recount(cluster.Nodes, charges); drift != (pools.Drift{}) {
				b.Fatalf("drift %+v", drift)
			}
		}
	}
}
