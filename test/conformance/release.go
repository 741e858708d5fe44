package conformance

import (
	"context"
	"slices"
	"sync"
	"time"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var releaseClauses = []Clause{
	{ID: releases, Sentence: "A release with the present generation gives the networks back.", needs: []string{makes}, check: releaseReleases},
	{ID: "release/any", Sentence: "A release without a generation, or with 0, gives back whatever is there.", needs: []string{releases, moves}, check: releaseAny},
	{ID: "release/again", Sentence: "Without an allocation a release is 204, or 404 with reason NotFound, whatever the generation.", needs: []string{releases}, check: releaseAgain},
	{ID: "release/stale", Sentence: "A release with a stale generation is 409 with the present allocation, and nothing is released.", needs: []string{releases, moves}, check: releaseStale},
	{ID: "release/other-cluster", Sentence: "A release never touches another cluster's allocation.", needs: []string{"release/again"}, check: releaseOtherCluster},
	{ID: "release/too-young", Sentence: "A release whose minAgeSeconds is more than the age is 409 TooYoung with the present allocation, and nothing is released.", needs: []string{"release/again"}, check: releaseTooYoung},
	{ID: "release/new-generation", Sentence: "After a release an ensure makes a new allocation with a larger generation than any before.", needs: []string{releases, moves}, check: releaseNewGeneration},
}

// The keeper ends in these.
var lastClauses = []Clause{
	{ID: "allocation/lives", Sentence: "An allocation lives until a release, whatever else is asked meanwhile.", needs: []string{idempotent}, check: allocationLives},
	{ID: "release/old-enough", Sentence: "A release whose minAgeSeconds has passed since the last accepted ensure gives the networks back.", needs: []string{"age/resets", "release/too-young", "allocation/lives"}, check: releaseOldEnough},
	{ID: "release/one-step", Sentence: "With minAgeSeconds the age is compared and the networks released in one step: an ensure beside it keeps its answer.", needs: []string{"release/old-enough"}, check: releaseOneStep},
}

// leavesNothing is checked in any case, after all others.
var leavesNothing = Clause{
	ID: "cleanup", Sentence: "All that this run made has been released.", check: cleanup,
}

func releaseReleases(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	released(p.del(ctx, "generation", decimal(first.Generation)))
	p.absent(ctx, "after a release")
}

func releaseAny(ctx context.Context, r *run) {
	for _, parameters := range [][]string{nil, {"generation", "0"}} {
		p := r.newPod()
		first := p.ensure(ctx)
		p.put(ctx, p.moved(), withGeneration(first.Generation))
		released(p.del(ctx, parameters...))
		p.absent(ctx, "after a release")
	}
}

func releaseAgain(ctx context.Context, r *run) {
	p := r.newPod()
	released(p.del(ctx)) // never was
	first := p.ensure(ctx)
	for range 3 { // the second and third are the first one, late
		released(p.del(ctx, "generation", decimal(first.Generation)))
	}
	released(p.del(ctx))
	released(p.del(ctx, "generation", decimal(first.Generation+1000)))
	p.absent(ctx, "after releases")
}

func releaseStale(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	p.conflict(ctx, p.del(ctx, "generation", decimal(first.Generation+1000)), tenant.ReasonStaleGeneration, first)
	second := p.put(ctx, p.moved(), withGeneration(first.Generation))
	p.conflict(ctx, p.del(ctx, "generation", decimal(first.Generation)), tenant.ReasonStaleGeneration, p.allocation(second))
}

func releaseOtherCluster(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	twin := r.podIn(r.newCluster(), p.uid)
	released(twin.del(ctx))
	p.unchanged(ctx, first, "after a release in another cluster, which has no allocation")
	second := twin.ensure(ctx)
	released(twin.del(ctx, "generation", decimal(second.Generation)))
	p.unchanged(ctx, first, "after a release in another cluster, which had an allocation")
	twin.absent(ctx, "after its release")
}

func releaseTooYoung(ctx context.Context, r *run) {
	p := r.newPod()
	released(p.del(ctx, "minAgeSeconds", "3600")) // without an allocation there is nothing to do
	first := p.ensure(ctx)
	p.conflict(ctx, p.del(ctx, "minAgeSeconds", "3600"), tenant.ReasonTooYoung, first)
	p.conflict(ctx, p.del(ctx, "minAgeSeconds", "3600", "generation", decimal(first.Generation)), tenant.ReasonTooYoung, first)
	released(p.del(ctx, "minAgeSeconds", "0"))
	p.absent(ctx, "after a release with minAgeSeconds 0")
}

func releaseNewGeneration(ctx context.Context, r *run) {
	p := r.newPod()
	last := p.ensure(ctx)
	last = p.ensure(ctx, p.moved(), withGeneration(last.Generation))
	for range 2 {
		released(p.del(ctx, "generation", decimal(last.Generation)))
		next := p.ensure(ctx)
		if next.Generation <= last.Generation {
			failf("generation %d after a release of generation %d; want a larger one", next.Generation, last.Generation)
		}
		last = next
	}
}

func allocationLives(ctx context.Context, r *run) {
	r.keeper.unchanged(ctx, r.kept, "after the other clauses' requests")
}

func releaseOldEnough(ctx context.Context, r *run) {
	p := r.keeper
	if !poll(ctx, func() bool { return p.get(ctx).AgeSeconds >= 1 }) {
		failf("the age does not grow")
	}
	released(p.del(ctx, "minAgeSeconds", "1", "generation", decimal(r.kept.Generation)))
	p.absent(ctx, "after a release with minAgeSeconds 1")
}

// releaseOneStep sends both at once, for several pods. Whichever comes first, the allocation that the ensure answered
// is there afterwards: it is either too young to be released, or made after the release.
func releaseOneStep(ctx context.Context, r *run) {
	pods := r.newPods(r.cluster, 8)
	for _, p := range pods {
		p.ensure(ctx)
	}
	for _, p := range pods {
		if !poll(ctx, func() bool { return p.get(ctx).AgeSeconds >= 1 }) {
			failf("the age does not grow")
		}
	}
	for i, p := range pods {
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = p.tryDel(ctx, "minAgeSeconds", "1") }) // either answer is right
		_ = wait(ctx, time.Duration(i)*time.Millisecond)             // or the same one would always be the first
		ensured, err := p.tryPut(ctx, p.ask)
		wg.Wait()
		if err != nil {
			failf("%v", err)
		}
		p.unchanged(ctx, p.allocation(ensured), "after a release beside the ensure")
	}
}

func cleanup(ctx context.Context, r *run) {
	for _, p := range r.pods {
		if err := p.tryRelease(ctx); err != nil {
			failf("left behind: cluster %s, pod UID %s: %v", p.ask.Cluster, p.uid, err)
		}
	}
	for _, cluster := range r.clusters {
		// An ensure that was given up on may have been late. The cluster is ours, so all that is in it can go.
		left := r.left(ctx, cluster)
		if len(left) == 0 {
			continue
		}
		for _, a := range left {
			_ = r.podIn(cluster, a.PodUID).tryRelease(ctx) // looked at below
		}
		if left = r.left(ctx, cluster); len(left) > 0 {
			failf("left behind: %s", asJSON(left))
		}
	}
}

// left is what the list shows of a cluster. A list that cannot be read has been judged by its own clauses.
func (r *run) left(ctx context.Context, cluster string) []tenant.Allocation {
	var all []tenant.Allocation
	_ = attempt(func() { all = r.walk(ctx, cluster, 0, nil) })
	return slices.DeleteFunc(all, func(a tenant.Allocation) bool { return a.Cluster != cluster })
}
