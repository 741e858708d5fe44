package conformance

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"tenant.network/tenant-webhook/pkg/tenant"
)

const (
	allocationsPath = "/v1/allocations"
	healthPath      = "/healthz"
)

// run is one execution of the suite.
type run struct {
	config Config
	// clause is the ID of the present one.
	clause string
	// cluster is where most clauses work; those that look at lists have one each.
	cluster string
	// keeper lives from the first clause to the last. kept is what its first ensure was answered.
	keeper          *pod
	kept            *tenant.Allocation
	asked, answered time.Time

	// pods are those that there may be allocations of, clusters all that were named.
	pods     []*pod
	clusters []string
}

func newRun(config Config) *run {
	r := &run{config: config}
	r.cluster = r.newCluster()
	r.keeper = r.newPod()
	return r
}

// newCluster invents a cluster.
func (r *run) newCluster() string {
	cluster := "conformance-" + rand.Text()
	r.clusters = append(r.clusters, cluster)
	return cluster
}

// pod is one that does not exist, with the ensure that fits it. Its allocation is released after the clause.
type pod struct {
	run *run
	uid types.UID
	ask tenant.EnsureRequest
}

func (r *run) newPod() *pod { return r.podIn(r.cluster, uuid.NewUUID()) }

func (r *run) newPods(cluster string, n int) []*pod {
	var pods []*pod
	for range n {
		pods = append(pods, r.podIn(cluster, uuid.NewUUID()))
	}
	return pods
}

func (r *run) podIn(cluster string, uid types.UID) *pod {
	p := &pod{run: r, uid: uid, ask: tenant.EnsureRequest{
		Cluster: cluster, Namespace: r.config.Namespace, Pod: fmt.Sprintf("conformance-%d", len(r.pods)), Tenant: r.config.Tenant,
		Node: r.config.Node, Requests: r.requests(1),
	}}
	r.pods = append(r.pods, p)
	return p
}

// requests asks for n networks from each pool.
func (r *run) requests(n int64) []tenant.Request {
	var requests []tenant.Request
	for _, request := range []tenant.Request{{Type: "vf", Pool: r.config.VFPool, Count: n}, {Type: "pf", Pool: r.config.PFPool, Count: n}} {
		if request.Pool != "" {
			requests = append(requests, request)
		}
	}
	return requests
}

// change is a difference from the pod's own ask.
type change = func(*tenant.EnsureRequest)

func onNode(node string) change     { return func(a *tenant.EnsureRequest) { a.Node = node } }
func withGeneration(n int64) change { return func(a *tenant.EnsureRequest) { a.Generation = n } }
func (p *pod) path() string         { return allocationsPath + "/" + url.PathEscape(string(p.uid)) }
func (p *pod) moved() change        { return onNode(p.run.config.OtherNode) }
func (p *pod) query() url.Values    { return url.Values{"cluster": {p.ask.Cluster}} }

// changed is the pod's ask, but for the changes.
func (p *pod) changed(changes ...change) tenant.EnsureRequest {
	ask := p.ask
	ask.Requests = slices.Clone(ask.Requests)
	for _, c := range changes {
		c(&ask)
	}
	return ask
}

// put sends an ensure.
func (p *pod) put(ctx context.Context, changes ...change) *answer {
	got, err := p.tryPut(ctx, p.changed(changes...))
	if err != nil {
		failf("%v", err)
	}
	return got
}

func (p *pod) tryPut(ctx context.Context, body any) (*answer, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return p.run.ask(ctx, http.MethodPut, p.path(), nil, content)
}

// ensure wants the ensure accepted.
func (p *pod) ensure(ctx context.Context, changes ...change) *tenant.Allocation {
	return p.allocation(p.put(ctx, changes...))
}

// get wants the allocation to be there.
func (p *pod) get(ctx context.Context) *tenant.Allocation {
	return p.allocation(p.run.mustAsk(ctx, http.MethodGet, p.path(), p.query(), nil))
}

// allocation is the answer's, which must be this pod's: callers believe no other.
func (p *pod) allocation(got *answer) *tenant.Allocation {
	a := decode[tenant.Allocation](got)
	if a.PodUID != p.uid || a.Cluster != p.ask.Cluster || a.Generation < 1 {
		failf("%s; want the allocation of pod UID %s of cluster %s, with a generation", got, p.uid, p.ask.Cluster)
	}
	return a
}

// absent wants the allocation not to be there.
func (p *pod) absent(ctx context.Context, after string) {
	got := p.run.mustAsk(ctx, http.MethodGet, p.path(), p.query(), nil)
	if got.status != http.StatusNotFound {
		failf("%s: %s; want 404", after, got)
	}
}

// unchanged wants the allocation to be as it was, but for its age.
func (p *pod) unchanged(ctx context.Context, before *tenant.Allocation, after string) {
	same(before, p.get(ctx), after)
}

// same compares what was answered at different times.
func same(want, got *tenant.Allocation, after string) {
	if w, g := timeless(want), timeless(got); w != g {
		failf("%s: the allocation is %s; want %s", after, g, w)
	}
}

func timeless(a *tenant.Allocation) string {
	c := *a
	c.AgeSeconds = 0
	return asJSON(c)
}

func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// conflict wants a 409 that shows the present allocation, and that nothing changed.
func (p *pod) conflict(ctx context.Context, got *answer, reason string, present *tenant.Allocation) {
	problem := got.problem(http.StatusConflict, reason)
	if problem.Allocation == nil {
		failf("%s; want the present allocation in it", got)
	}
	same(present, problem.Allocation, "in the answer to "+got.question)
	p.unchanged(ctx, present, "after "+got.question)
}

// del sends a release; parameters are name, value, name, value …
func (p *pod) del(ctx context.Context, parameters ...string) *answer {
	got, err := p.tryDel(ctx, parameters...)
	if err != nil {
		failf("%v", err)
	}
	return got
}

func (p *pod) tryDel(ctx context.Context, parameters ...string) (*answer, error) {
	query := p.query()
	for i := 0; i+1 < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	return p.run.ask(ctx, http.MethodDelete, p.path(), query, nil)
}

// released wants the answer that callers take as success.
func released(got *answer) {
	if got.status == http.StatusNoContent {
		return
	}
	problem, err := got.decodeProblem()
	if got.status == http.StatusNotFound && err == nil && problem.Reason == tenant.ReasonNotFound {
		return
	}
	failf("%s; want 204, or 404 with a problem whose reason is NotFound", got)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// page reads one page of a list. limit 0 leaves it to the tenant-controller.
func (r *run) page(ctx context.Context, cluster string, limit int, token string) *tenant.AllocationList {
	query := url.Values{"cluster": {cluster}}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	if token != "" {
		query.Set("continue", token)
	}
	got := r.mustAsk(ctx, http.MethodGet, allocationsPath, query, nil)
	page := decode[tenant.AllocationList](got)
	if page.Allocations == nil {
		failf("%s; want the field allocations, empty where there are none", got)
	}
	if limit > 0 && len(page.Allocations) > limit {
		failf("%s: %d allocations; want at most %d", got.question, len(page.Allocations), limit)
	}
	return page
}

// maxPages ends a walk that would not end: no clause makes as many allocations.
const maxPages = 100

// walk reads all pages and calls between, if any, after each one but the last.
func (r *run) walk(ctx context.Context, cluster string, limit int, between func(page *tenant.AllocationList)) []tenant.Allocation {
	var all []tenant.Allocation
	token := ""
	for range maxPages {
		page := r.page(ctx, cluster, limit, token)
		all = append(all, page.Allocations...)
		if page.Continue == "" {
			return all
		}
		if between != nil {
			between(page)
		}
		token = page.Continue
	}
	failf("the list of cluster %s has no end after %d pages", cluster, maxPages)
	return nil
}

// atOnce sends the bodies at the same time, and returns the answers in their order.
func (p *pod) atOnce(ctx context.Context, bodies []any) []*answer {
	answers, errs := make([]*answer, len(bodies)), make([]error, len(bodies))
	var wg sync.WaitGroup
	for i, body := range bodies {
		wg.Go(func() { answers[i], errs[i] = p.tryPut(ctx, body) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		failf("%v", err)
	}
	return answers
}

// poll tries until done, every 100 ms for at most 3 s.
func poll(ctx context.Context, done func() bool) bool {
	const interval, limit = 100 * time.Millisecond, 10 * time.Second
	for deadline := time.Now().Add(limit); ; {
		if done() {
			return true
		}
		if time.Now().After(deadline) || wait(ctx, interval) != nil {
			return false
		}
	}
}

// releaseClause gives back what the last clause made. What stays is tried again at the end.
func (r *run) releaseClause(ctx context.Context) {
	var left []*pod
	for _, p := range r.pods {
		if p == r.keeper || p.tryRelease(ctx) != nil {
			left = append(left, p)
		}
	}
	r.pods = left
}

// tryRelease names the generation only to who insists.
func (p *pod) tryRelease(ctx context.Context) error {
	got, err := p.tryDel(ctx)
	if err != nil {
		return err
	}
	if problem, err := got.decodeProblem(); got.status == http.StatusConflict && err == nil && problem.Allocation != nil {
		if got, err = p.tryDel(ctx, "generation", decimal(problem.Allocation.Generation)); err != nil {
			return err
		}
	}
	if got.status != http.StatusNoContent && got.status != http.StatusNotFound {
		return fmt.Errorf("%s", got)
	}
	return nil
}
