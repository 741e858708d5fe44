package conformance

import (
	"context"
	"net/http"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var generationClauses = []Clause{
	{ID: moves, Sentence: "Another node with the present generation changes the node and lets the generation grow; the networks stay.", needs: []string{idempotent}, check: generationMoves},
	{ID: zero, Sentence: "Another node with generation 0 is 409 with the present allocation, and nothing changes.", needs: []string{makes}, check: generationZero},
	{ID: stale, Sentence: "A generation that is neither 0 nor the present one is 409 with the present allocation, and nothing changes.", needs: []string{moves}, check: generationStale},
	{ID: "generation/repeat", Sentence: "A move that arrives again moves nothing: it is the same answer, or 409 with the present allocation.", needs: []string{stale}, check: generationRepeat},
	{ID: "generation/race", Sentence: "Of several moves at once with one generation, one is accepted.", needs: []string{stale, zero}, check: generationRace},
	{ID: "generation/unknown", Sentence: "A generation for an unknown pod UID is 409 without an allocation, and nothing is made.", check: generationUnknown},
}

func generationMoves(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	second := p.ensure(ctx, p.moved(), withGeneration(first.Generation))
	if second.Generation <= first.Generation {
		failf("generation %d after %d; want a larger one", second.Generation, first.Generation)
	}
	want := *first
	want.Node, want.Generation = r.config.OtherNode, second.Generation
	same(&want, second, "after the move")
	p.unchanged(ctx, second, "after the move")
	back := p.ensure(ctx, withGeneration(second.Generation))
	if back.Generation <= second.Generation {
		failf("generation %d after %d, for the way back; want a larger one", back.Generation, second.Generation)
	}
	want.Node, want.Generation = r.config.Node, back.Generation
	same(&want, back, "after the way back")
}

func generationZero(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	p.conflict(ctx, p.put(ctx, p.moved()), tenant.ReasonStaleGeneration, first)
}

func generationStale(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	second := p.ensure(ctx, p.moved(), withGeneration(first.Generation))
	p.conflict(ctx, p.put(ctx, withGeneration(first.Generation)), tenant.ReasonStaleGeneration, second)
	p.conflict(ctx, p.put(ctx, onNode("conformance-node-3"), withGeneration(first.Generation)), tenant.ReasonStaleGeneration, second)
	p.conflict(ctx, p.put(ctx, p.moved(), withGeneration(second.Generation+1000)), tenant.ReasonStaleGeneration, second)
}

func generationRepeat(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	move := []change{p.moved(), withGeneration(first.Generation)}
	second := p.ensure(ctx, move...)
	again := p.put(ctx, move...)
	if again.status == http.StatusOK {
		same(second, p.allocation(again), "after the same move again")
		p.unchanged(ctx, second, "after the same move again")
		return
	}
	p.conflict(ctx, again, tenant.ReasonStaleGeneration, second)
}

func generationRace(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	var bodies []any
	for _, node := range []string{"a", "b", "c", "d"} {
		bodies = append(bodies, p.changed(onNode("conformance-node-"+node), withGeneration(first.Generation)))
	}
	var winner *tenant.Allocation
	for _, got := range p.atOnce(ctx, bodies) {
		if got.status != http.StatusOK {
			got.problem(http.StatusConflict, tenant.ReasonStaleGeneration)
			continue
		}
		if winner != nil {
			failf("%s; want 409, because another move with generation %d was accepted", got, first.Generation)
		}
		winner = p.allocation(got)
	}
	if winner == nil {
		failf("none of the moves with the present generation %d was accepted", first.Generation)
	}
	p.unchanged(ctx, winner, "after several moves at once")
}

func generationUnknown(ctx context.Context, r *run) {
	p := r.newPod()
	got := p.put(ctx, withGeneration(7))
	if problem := got.problem(http.StatusConflict, tenant.ReasonStaleGeneration); problem.Allocation != nil {
		failf("%s; want no allocation in it", got)
	}
	p.absent(ctx, "after a refused ensure")
}
