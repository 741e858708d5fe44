package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/mock/engine"
)

// driver decides what happens next and has it done. What it decides depends on the seed alone: it goes by its own model
// of what it has asked for, never by what the cluster answered. The doing runs in the background, in the order of the
// decisions for each object, and insists until the API server has taken it.
type driver struct {
	*world
	out  io.Writer
	rng  *rand.Rand
	pace time.Duration
	// quickRejoin has a deleted node come back while its pods still run.
	quickRejoin bool

	now   int // the number of the present event
	pods  []*pod
	sets  []*set
	nodes []*node
	later map[int][]func()
	deck  []fault
	// unlabelled are the namespaces that have lost their label, and when; poolsMoved says that the pool configuration is
	// not the first one.
	unlabelled map[string]time.Time
	poolsMoved bool

	chains  map[string]chan struct{} // by object: closed when the last thing asked of it is done
	pending sync.WaitGroup
	failed  atomic.Int64
	faults  tally
}

// settings are what a run's sequence depends on, besides the seed.
type settings struct {
	seed        uint64
	events      int
	pace        time.Duration
	quickRejoin bool
}

func newDriver(w *world, s settings, out io.Writer) *driver {
	d := &driver{
		world: w, out: out, quickRejoin: s.quickRejoin, rng: rand.New(rand.NewPCG(s.seed, 0x6368616f73)), pace: s.pace,
		later: map[int][]func(){}, unlabelled: map[string]time.Time{}, chains: map[string]chan struct{}{},
	}
	for _, n := range clusterNodes() {
		d.nodes = append(d.nodes, &node{Node: n})
	}
	return d
}

// run makes the events, one every pace, and a fault in one of faultEvery.
func (d *driver) run(ctx context.Context, events int) error {
	ticker := time.NewTicker(d.pace)
	defer ticker.Stop()
	shown := time.Now()
	for d.now = 1; d.now <= events; d.now++ {
		for _, undo := range d.later[d.now] {
			undo()
		}
		delete(d.later, d.now)
		d.act(ctx)
		if d.rng.IntN(faultEvery) == 0 {
			if err := d.fault(ctx); err != nil {
				return err
			}
		}
		if time.Since(shown) > 5*time.Second {
			shown = time.Now()
			faults, kinds := d.faults.counts()
			fmt.Fprintf(d.out, "chaos: event %d of %d, %d pods and %d workloads asked for, %d faults of %d kinds\n", d.now, events, len(d.pods), len(d.sets), faults, kinds)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// after has something done some events later, or at the end.
func (d *driver) after(events int, what func()) {
	d.later[d.now+events] = append(d.later[d.now+events], what)
}

// do has something done to an object, after everything that was asked of it before.
func (d *driver) do(ctx context.Context, key, text string, try func(ctx context.Context) error) {
	before, done := d.chains[key], make(chan struct{})
	d.chains[key] = done
	number := d.now
	d.pending.Go(func() {
		defer close(done)
		if before != nil {
			<-before
		}
		from := time.Now()
		err := d.insist(ctx, try)
		e := event{Kind: note, Source: fromDriver, From: from, To: time.Now(), Pod: key, Text: fmt.Sprintf("%s (event %d)", text, number)}
		if err != nil {
			d.failed.Add(1)
			e.Text += ": " + err.Error()
		}
		d.add(e)
	})
}

// calm ends all faults and restores everything that was taken away.
func (d *driver) calm(ctx context.Context) error {
	d.now++
	err := d.insist(ctx, func(ctx context.Context) error {
		return d.setFaults(ctx, func([]engine.Fault) []engine.Fault { return nil })
	})
	if err != nil {
		return err
	}
	d.faults.background.Wait()
	for _, name := range d.Components() {
		if err := d.WaitReady(ctx, name); err != nil {
			return err
		}
	}
	// A kubelet repeats what failed until it succeeds. kwok gives up a pod whose last step met a dead API server, and
	// looks at it again when it starts. It may have been killed for the same reason just now.
	if err := d.Kill(devcluster.Kwok); err != nil && !errors.Is(err, devcluster.ErrNotRunning) {
		return err
	}
	if err := d.WaitReady(ctx, devcluster.Kwok); err != nil {
		return err
	}
	for _, n := range d.nodes {
		d.restoreNode(ctx, n)
	}
	for namespace := range d.unlabelled {
		d.label(ctx, namespace, true)
	}
	d.setPools(ctx, poolOrders[0])
	for _, p := range d.pods {
		if p.gated {
			d.ungate(ctx, p)
		}
	}
	d.pending.Wait()
	return nil
}

// faultEvery is how many events there are to a fault, on average.
const faultEvery = 10

// heavy is how long a fault of the store or the API server may last.
const heavy = 90 * time.Second

// replicas of the webhook.
const replicas = 2

var namespaces = []string{"tenant-a", "tenant-b", "tenant-c"}

// tenantOf is the tenant that owns a namespace: one of them is labelled with another name.
var tenantOf = map[string]string{"tenant-a": "tenant-a", "tenant-b": "blue", "tenant-c": "tenant-c"}

// Pools of the nodes, in the order of poolOrders.
const (
	vfPool       = devcluster.DefaultVFResource
	vfSharedPool = "rdma/hca_shared_devices_a"
	pfPool       = devcluster.DefaultPFResource
	pfSharedPool = "rdma/hca_shared_devices_b"
)

// poolOrders are texts of the pool configuration: the shipped one, others in another order or with a pool less, and two
// that are refused.
var poolOrders = []string{
	vfPool + " type=vf\n" + vfSharedPool + " type=vf\n" + pfPool + " type=pf\n" + pfSharedPool + " type=pf\n",
	vfSharedPool + " type=vf\n" + vfPool + " type=vf\n" + pfSharedPool + " type=pf\n" + pfPool + " type=pf\n",
	vfPool + " type=vf\n" + pfPool + " type=pf\n" + pfSharedPool + " type=pf\n",
	vfPool + " type=banana\n",
	"no/such/name type=vf\n",
}

// clusterNodes are 24 nodes with pools of different sizes; every second one has the shared pools.
func clusterNodes() []devcluster.Node {
	nodes := make([]devcluster.Node, 24)
	for i := range nodes {
		extended := map[string]string{vfPool: strconv.Itoa(3 + i%4)}
		if i%2 == 0 {
			extended[vfSharedPool] = strconv.Itoa(4 + i%5)
		}
		if i%3 != 2 {
			extended[pfPool] = "2"
		}
		if i%4 == 0 {
			extended[pfSharedPool] = "3"
		}
		nodes[i] = devcluster.Node{Name: fmt.Sprintf("node-%02d", i), Extended: extended}
	}
	return nodes
}
