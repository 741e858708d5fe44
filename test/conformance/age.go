package conformance

import (
	"context"
	"slices"
	"time"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// The clauses about the age share the keeper, so that all of them together wait for one second only.
var ageClauses = []Clause{
	{ID: "age/grows", Sentence: "The age is the whole seconds since the last accepted ensure, rounded down.", needs: []string{makes}, check: ageGrows},
	{ID: "age/read", Sentence: "Reading does not touch the age.", needs: []string{"age/grows"}, check: ageRead},
	{ID: "age/refused", Sentence: "A refused ensure does not touch the age.", needs: []string{"age/read", zero, stale}, check: ageRefused},
	{ID: "age/resets", Sentence: "After the same ask the age starts at 0 again.", needs: []string{"age/read"}, check: ageResets},
}

// seconds that can have passed since then, rounded down as the contract has it.
func seconds(since time.Time) int64 { return int64(time.Since(since) / time.Second) }

func ageGrows(ctx context.Context, r *run) {
	if most := int64(r.answered.Sub(r.asked) / time.Second); r.kept.AgeSeconds < 0 || r.kept.AgeSeconds > most {
		failf("age %d in the answer to an ensure; want at most %d", r.kept.AgeSeconds, most)
	}
	// The keeper is not read meanwhile: that might touch it.
	if err := wait(ctx, time.Until(r.answered.Add(time.Second))); err != nil {
		failf("%v", err)
	}
	grown := poll(ctx, func() bool {
		all := r.walk(ctx, r.cluster, 0, nil)
		i := slices.IndexFunc(all, func(a tenant.Allocation) bool { return a.PodUID == r.keeper.uid })
		if i < 0 {
			failf("pod UID %s is not in the list", r.keeper.uid)
		}
		if most := seconds(r.asked); all[i].AgeSeconds > most {
			failf("age %d; want at most %d, the seconds since the ensure was sent", all[i].AgeSeconds, most)
		}
		return all[i].AgeSeconds >= 1
	})
	if !grown {
		failf("age 0 after %s; want at least 1", time.Since(r.answered).Round(time.Second))
	}
}

func ageRead(ctx context.Context, r *run) {
	before := r.keeper.get(ctx).AgeSeconds
	r.walk(ctx, r.cluster, 0, nil)
	for range 3 {
		if age := r.keeper.get(ctx).AgeSeconds; age < max(before, 1) {
			failf("age %d after it was read as %d; the last ensure was more than a second ago", age, before)
		}
	}
}

func ageRefused(ctx context.Context, r *run) {
	p := r.keeper
	for _, refused := range [][]change{
		{p.moved()},
		{withGeneration(r.kept.Generation + 1000)},
		{func(a *tenant.EnsureRequest) { a.Pod += "-other" }},
	} {
		before := p.get(ctx).AgeSeconds
		got := p.put(ctx, refused...)
		if age := p.get(ctx).AgeSeconds; age < before {
			failf("age %d after %s; it was %d before", age, got, before)
		}
	}
}

func ageResets(ctx context.Context, r *run) {
	p := r.keeper
	const tries = 5
	for range tries {
		before := p.get(ctx).AgeSeconds
		asked := time.Now()
		got, read := p.ensure(ctx), p.get(ctx)
		most := seconds(asked)
		if got.AgeSeconds > most || read.AgeSeconds > most {
			failf("age %d in the answer and %d after it; want at most %d, the seconds since the ensure was sent", got.AgeSeconds, read.AgeSeconds, most)
		}
		if most < before {
			return
		}
		// The calls took so long that an age that goes on would look the same. An older one can be told.
		if err := wait(ctx, time.Duration(most+1)*time.Second); err != nil {
			failf("%v", err)
		}
	}
	failf("the answers take too long to tell")
}
