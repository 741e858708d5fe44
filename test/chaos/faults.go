package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/mock/engine"
)

// fault is one way to break something. Faults are dealt from a shuffled deck, so that each comes as often as the others.
type fault struct {
	name   string
	inject func(*driver, context.Context, string) error
}

// rules are the mock's ways to misbehave.
var rules = []engine.Fault{
	{Operation: "ensure", DropReply: true, Times: 2},
	{Operation: "release", DropReply: true, Times: 2},
	{DropRequest: true, Times: 4},
	{Status: http.StatusServiceUnavailable, RetryAfterSeconds: 1, Times: 4},
	{Status: http.StatusTooManyRequests, RetryAfterSeconds: 2, Times: 2},
	{Status: http.StatusInternalServerError, Times: 6},
	{Body: "garbage", Times: 3},
	{Body: "half", Times: 3},
	{LatencyMillis: 1500, Times: 6},
	{Hold: true, Times: 3},
	{Operation: "ensure", Status: http.StatusUnprocessableEntity, Times: 4}, // of one tenant
	{Operation: "ensure", Networks: "+1", Times: 2},
	{Operation: "ensure", Networks: "-1", Times: 2},
	{Operation: "ensure", Networks: "duplicate", Times: 2},
	{Operation: "ensure", Networks: "foreign", Times: 2},
	{Operation: "ensure", Networks: "wrongPool", Times: 2},
	{Operation: "ensure", Networks: "wrongNamespace", Times: 2},
}

// deckOfFaults is every kind once.
func deckOfFaults() []fault {
	var deck []fault
	for _, name := range []string{
		devcluster.TenantScheduler, devcluster.WebhookReplica(0), devcluster.WebhookReplica(1), devcluster.Mock,
		devcluster.ControllerManager, devcluster.Kwok,
	} {
		deck = append(deck, fault{"kill " + name, func(d *driver, _ context.Context, kind string) error { return d.kill(name, kind) }})
	}
	for _, name := range []string{devcluster.Etcd, devcluster.APIServer} {
		deck = append(deck, fault{"kill " + name, func(d *driver, ctx context.Context, kind string) error {
			return d.outage(ctx, kind, func(context.Context) error { return d.Kill(name) })
		}})
	}
	deck = append(deck,
		fault{"restart " + devcluster.APIServer, func(d *driver, ctx context.Context, kind string) error {
			return d.outage(ctx, kind, func(ctx context.Context) error {
				_ = d.Stop(devcluster.APIServer) // an error says that it had to be killed, which is as well
				return d.StartComponent(ctx, devcluster.APIServer)
			})
		}},
		fault{"freeze " + devcluster.TenantScheduler, func(d *driver, ctx context.Context, kind string) error {
			return d.freeze(ctx, devcluster.TenantScheduler, kind, time.Duration(d.draw(1000, 4000))*time.Millisecond)
		}},
		// Longer than the lease of the leader, which then goes on as if nothing had been.
		fault{"freeze " + devcluster.Webhook, func(d *driver, ctx context.Context, kind string) error {
			return d.freeze(ctx, devcluster.WebhookReplica(d.rng.IntN(replicas)), kind, time.Duration(d.draw(1000, 20000))*time.Millisecond)
		}},
	)
	for _, rule := range rules {
		deck = append(deck, fault{faultName(&rule), func(d *driver, ctx context.Context, _ string) error { return d.misbehave(ctx, rule) }})
	}
	return deck
}

// fault deals the next one.
func (d *driver) fault(ctx context.Context) error {
	if len(d.deck) == 0 {
		d.deck = deckOfFaults()
		d.rng.Shuffle(len(d.deck), func(i, j int) { d.deck[i], d.deck[j] = d.deck[j], d.deck[i] })
	}
	f := d.deck[0]
	d.deck = d.deck[1:]
	d.add(event{Kind: note, Source: fromDriver, From: time.Now(), To: time.Now(), Text: fmt.Sprintf("fault: %s (event %d)", f.name, d.now)})
	if err := f.inject(d, ctx, f.name); err != nil {
		return fmt.Errorf("fault %q: %w", f.name, err)
	}
	return nil
}

// kill kills a process; one that is not running, because it was killed just before, is left alone and not counted.
func (d *driver) kill(name, kind string) error {
	if d.Kill(name) == nil {
		d.faults.happened(kind)
	}
	return nil
}

// outage takes the API server or its store away and waits for them, so that a run is not all outage. What the driver asked
// for just before is in the middle of it.
func (d *driver) outage(ctx context.Context, kind string, strike func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, heavy)
	defer cancel()
	from := time.Now()
	if err := strike(ctx); err != nil {
		return err
	}
	d.faults.happened(kind)
	for _, name := range []string{devcluster.Etcd, devcluster.APIServer} {
		if err := d.WaitReady(ctx, name); err != nil {
			return err
		}
	}
	// The schedulers' watches try again after pauses that grow.
	d.add(event{Kind: blind, Source: fromDriver, From: from, To: time.Now().Add(10 * time.Second), Text: kind})
	return nil
}

// freeze stops a process for a while. It may be killed meanwhile; then its successor runs.
func (d *driver) freeze(ctx context.Context, name, kind string, long time.Duration) error {
	from := time.Now()
	if d.Signal(name, syscall.SIGSTOP) != nil {
		return nil //nolint:nilerr // it is not running, because it was killed just before
	}
	d.faults.happened(kind)
	d.faults.background.Go(func() {
		select {
		case <-time.After(long):
		case <-ctx.Done():
		}
		_ = d.Signal(name, syscall.SIGCONT) // it may be dead by now
		if name == devcluster.TenantScheduler {
			d.add(event{Kind: blind, Source: fromDriver, From: from, To: time.Now().Add(time.Second), Text: kind})
		}
	})
	return nil
}

// misbehave adds a rule to the mock's. Whether it applied to anything shows its request log. What is held is let go by
// the next change of the rules, which this makes sure of.
func (d *driver) misbehave(ctx context.Context, rule engine.Fault) error {
	if rule.Status == http.StatusUnprocessableEntity {
		rule.Tenant = tenantOf[namespaces[d.rng.IntN(len(namespaces))]]
	}
	long := time.Duration(d.draw(500, 4000)) * time.Millisecond
	d.faults.background.Go(func() {
		add := func(left []engine.Fault) []engine.Fault { return append(left, rule) }
		same := func(left []engine.Fault) []engine.Fault {
			return slices.DeleteFunc(left, func(f engine.Fault) bool { return f.Hold })
		}
		if d.insist(ctx, func(ctx context.Context) error { return d.setFaults(ctx, add) }) != nil || !rule.Hold {
			return
		}
		select {
		case <-time.After(long):
		case <-ctx.Done():
		}
		_ = d.insist(ctx, func(ctx context.Context) error { return d.setFaults(ctx, same) })
	})
	return nil
}

// tally counts the faults that happened.
type tally struct {
	mu         sync.Mutex
	kinds      map[string]int
	background sync.WaitGroup
}

func (t *tally) happened(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds == nil {
		t.kinds = map[string]int{}
	}
	t.kinds[kind]++
}

// applied counts the rules that the mock's request log shows at work. A rule that is good for several requests is one
// fault.
func (t *tally) applied(events []event) {
	requests := map[string]int{}
	for i := range events {
		if events[i].Fault != "" {
			requests[events[i].Fault]++
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, rule := range rules {
		if n := requests[faultName(&rule)]; n > 0 {
			t.kinds[faultName(&rule)] = (n + rule.Times - 1) / rule.Times
		}
	}
}

func (t *tally) counts() (faults, kinds int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.kinds {
		faults += n
	}
	return faults, len(t.kinds)
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(t.kinds)) {
		fmt.Fprintf(&text, "  %4d × %s\n", t.kinds[kind], kind)
	}
	return text.String()
}
