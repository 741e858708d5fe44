package conformance

import (
	"context"
	"net/http"
	"slices"
	"time"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// Clauses that others need.
const (
	makes      = "ensure/makes"
	idempotent = "ensure/idempotent"
	moves      = "generation/moves"
	zero       = "generation/zero"
	stale      = "generation/stale"
	notFound   = "get/not-found"
	releases   = "release/releases"
	complete   = "list/complete"
)

// Clauses returns the whole suite in its order: what others need comes before them, the keeper's end last.
func Clauses() []Clause {
	return slices.Concat(basicClauses, ensureClauses, generationClauses, releaseClauses, ageClauses, listClauses,
		invalidClauses, networkClauses, lastClauses)
}

var basicClauses = []Clause{
	{ID: "healthz", Sentence: "GET /healthz answers 200.", check: healthz},
	{ID: makes, Sentence: "An ensure makes as many networks as were asked for, in the pod's namespace.", check: ensureMakes},
	{ID: "get/found", Sentence: "GET answers the allocation as the ensure did.", needs: []string{makes}, check: getFound},
	{ID: notFound, Sentence: "GET without an allocation is 404 with a problem whose reason is NotFound.", check: getNotFound},
}

var ensureClauses = []Clause{
	{ID: "ensure/order", Sentence: "The networks are in the order of the requests, each with its request's pool.", needs: []string{makes}, check: ensureOrder},
	{ID: "ensure/unique", Sentence: "No network is in two allocations.", needs: []string{makes}, check: ensureUnique},
	{ID: idempotent, Sentence: "The same ask gets the same answer, with generation 0 and with the present one.", needs: []string{makes}, check: ensureIdempotent},
	{ID: "ensure/burst", Sentence: "The same ask many times at once makes one allocation.", needs: []string{idempotent}, check: ensureBurst},
	{ID: "ensure/tenant", Sentence: "The tenant is the first ensure's; a later one does not move the allocation.", needs: []string{idempotent}, check: ensureTenant},
	{ID: "ensure/unknown-field", Sentence: "Unknown fields are ignored.", needs: []string{makes}, check: ensureUnknownField},
	{ID: "ensure/pod-changed", Sentence: "Other requests, namespace or pod name are 422 PodChanged, and nothing changes.", needs: []string{makes}, check: ensurePodChanged},
	{ID: "ensure/two-clusters", Sentence: "The same pod UID in two clusters is two allocations.", needs: []string{"ensure/unique"}, check: ensureTwoClusters},
}

func healthz(ctx context.Context, r *run) {
	if got := r.mustAsk(ctx, http.MethodGet, healthPath, nil, nil); got.status != http.StatusOK {
		failf("%s; want 200", got)
	}
}

func ensureMakes(ctx context.Context, r *run) {
	p := r.keeper
	p.ask.Requests = r.requests(2)
	r.asked = time.Now()
	got := p.ensure(ctx)
	r.kept, r.answered = got, time.Now()
	count := int64(0)
	for _, request := range p.ask.Requests {
		count += request.Count
	}
	if int64(len(got.Networks)) != count {
		failf("%d networks; want %d: %s", len(got.Networks), count, asJSON(got))
	}
	for _, n := range got.Networks {
		if n.Namespace != p.ask.Namespace || n.Name == "" || len(n.Interface) > 15 {
			failf("network %s; want a name, namespace %q and an interface of at most 15 bytes", asJSON(n), p.ask.Namespace)
		}
	}
	// All that is not the tenant-controller's to choose.
	same(&tenant.Allocation{
		PodUID: p.uid, Cluster: p.ask.Cluster, Namespace: p.ask.Namespace, Pod: p.ask.Pod, Tenant: p.ask.Tenant, Node: p.ask.Node,
		Requests: p.ask.Requests, Networks: got.Networks, Generation: got.Generation,
	}, got, "after an ensure")
}

func getFound(ctx context.Context, r *run) {
	p := r.newPod()
	p.unchanged(ctx, p.ensure(ctx), "after an ensure")
}

func getNotFound(ctx context.Context, r *run) {
	p := r.newPod()
	r.mustAsk(ctx, http.MethodGet, p.path(), p.query(), nil).problem(http.StatusNotFound, tenant.ReasonNotFound)
}

func ensureOrder(ctx context.Context, r *run) {
	p := r.newPod()
	// The last pool comes first, and the first one twice: neither sorting nor grouping gives this order.
	p.ask.Requests = append(slices.Clone(r.requests(1)), r.requests(2)...)
	slices.Reverse(p.ask.Requests[:len(p.ask.Requests)/2])
	var want, pools []string
	for _, request := range p.ask.Requests {
		want = append(want, slices.Repeat([]string{request.Pool}, int(request.Count))...)
	}
	got := p.ensure(ctx)
	for _, n := range got.Networks {
		pools = append(pools, n.Pool)
	}
	if !slices.Equal(want, pools) {
		failf("the networks' pools are %q; want %q", pools, want)
	}
}

func ensureUnique(ctx context.Context, r *run) {
	owner := map[string]string{}
	for _, p := range r.newPods(r.cluster, 5) {
		for _, n := range p.ensure(ctx).Networks {
			if other, taken := owner[n.Name]; taken {
				failf("network %s/%s is in the allocations of %s and %s", n.Namespace, n.Name, other, p.uid)
			}
			owner[n.Name] = string(p.uid)
		}
	}
}

func ensureIdempotent(ctx context.Context, r *run) {
	p := r.newPod()
	p.ask.Requests = r.requests(2)
	first := p.ensure(ctx)
	same(first, p.ensure(ctx), "after the same ask")
	same(first, p.ensure(ctx, withGeneration(first.Generation)), "after the same ask with the present generation")
	p.unchanged(ctx, first, "after the same ask")
}

func ensureBurst(ctx context.Context, r *run) {
	p := r.newPod()
	answers := p.atOnce(ctx, slices.Repeat([]any{p.ask}, 8))
	first := p.allocation(answers[0])
	for _, got := range answers {
		same(first, p.allocation(got), "for one of several equal asks at once")
	}
	p.unchanged(ctx, first, "after equal asks at once")
	same(first, p.ensure(ctx), "for the same ask after equal asks at once")
}

func ensureTenant(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	same(first, p.ensure(ctx, func(a *tenant.EnsureRequest) { a.Tenant += "-other" }), "after an ensure with another tenant")
	p.unchanged(ctx, first, "after an ensure with another tenant")
}

func ensureUnknownField(ctx context.Context, r *run) {
	p := r.newPod()
	body := struct {
		tenant.EnsureRequest

		Later map[string]int `json:"aFieldOfALaterContract"`
	}{p.ask, map[string]int{"count": 1}}
	got, err := p.tryPut(ctx, body)
	if err != nil {
		failf("%v", err)
	}
	p.allocation(got)
}

func ensurePodChanged(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	for _, differently := range []change{
		func(a *tenant.EnsureRequest) { a.Namespace += "-other" },
		func(a *tenant.EnsureRequest) { a.Pod += "-other" },
		func(a *tenant.EnsureRequest) { a.Requests[0].Count++ },
		func(a *tenant.EnsureRequest) { a.Requests = append(a.Requests, a.Requests[0]) },
	} {
		for _, generation := range []int64{0, first.Generation} {
			p.put(ctx, differently, withGeneration(generation)).problem(http.StatusUnprocessableEntity, tenant.ReasonPodChanged)
			p.unchanged(ctx, first, "after a refusal")
		}
	}
}

func ensureTwoClusters(ctx context.Context, r *run) {
	p := r.newPod()
	twin := r.podIn(r.newCluster(), p.uid)
	one, two := p.ensure(ctx), twin.ensure(ctx)
	for _, n := range two.Networks {
		if slices.ContainsFunc(one.Networks, func(other tenant.Network) bool { return other.Name == n.Name }) {
			failf("network %s/%s is in the allocations of pod UID %s in both clusters", n.Namespace, n.Name, p.uid)
		}
	}
	p.unchanged(ctx, one, "after an ensure for the same pod UID in another cluster")
	twin.unchanged(ctx, two, "after it was made")
}
