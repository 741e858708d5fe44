package conformance

import (
	"context"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var invalidClauses = []Clause{
	{ID: "invalid/json", Sentence: "A body that is no JSON object is refused with a reason, and nothing is made.", needs: []string{"list/empty"}, check: invalidJSON},
	{ID: "invalid/fields", Sentence: "A missing, empty or mistyped field is refused with a reason, and nothing is made.", needs: []string{"list/empty"}, check: invalidFields},
	{ID: "invalid/requests", Sentence: "Requests without type, pool or a count of at least 1, or of an unknown type, are refused with a reason, and nothing is made.", needs: []string{"list/empty"}, check: invalidRequests},
	{ID: "invalid/huge", Sentence: "Absurd counts and bodies are refused, and nothing is made.", needs: []string{"list/empty"}, check: invalidHuge},
	{ID: "invalid/uid", Sentence: "A pod UID that cannot be a label's value is refused, and nothing is made.", needs: []string{"list/empty"}, check: invalidUID},
	{ID: "invalid/query", Sentence: "Wrong parameters are refused with a reason, and nothing is released.", needs: []string{makes}, check: invalidQuery},
	{ID: "errors/problem", Sentence: "Every refusal is problem+json with its status, a reason and a detail.", needs: []string{notFound, zero, "ensure/pod-changed", "invalid/fields"}, check: errorsProblem},
}

// object is JSON to be spoiled.
type object = map[string]any

// wrong is a body with what is wrong about it.
type wrong struct {
	what string
	body any // sent as it is if it is a string
}

// refuseAll wants each body refused and nothing made, in a cluster where there is nothing else.
func refuseAll(ctx context.Context, r *run, bodies func(p *pod) []wrong) {
	cluster := r.newCluster()
	for _, w := range bodies(r.newPods(cluster, 1)[0]) {
		p := r.newPods(cluster, 1)[0]
		text, ok := w.body.(string)
		if !ok {
			text = asJSON(w.body)
		}
		got := r.mustAsk(ctx, http.MethodPut, p.path(), nil, []byte(text))
		r.madeNothing(ctx, cluster, w.what, got)
		got.refused(w.what)
	}
}

// madeNothing is looked at before the answer: a refusal of what was done all the same is the worse fault.
func (r *run) madeNothing(ctx context.Context, cluster, what string, got *answer) {
	if left := r.walk(ctx, cluster, 0, nil); len(left) > 0 {
		failf("%s: %s; want a refusal and nothing made, but there is %s", what, got, asJSON(left))
	}
}

// valid is the pod's ask as an object, without the fields named.
func valid(p *pod, without ...string) object {
	var requests []any
	for _, r := range p.ask.Requests {
		requests = append(requests, object{"type": r.Type, "pool": r.Pool, "count": r.Count})
	}
	o := object{
		"cluster": p.ask.Cluster, "namespace": p.ask.Namespace, "pod": p.ask.Pod, "tenant": p.ask.Tenant, "node": p.ask.Node,
		"requests": requests,
	}
	maps.DeleteFunc(o, func(field string, _ any) bool { return slices.Contains(without, field) })
	return o
}

// with sets one field.
func with(o object, field string, value any) object {
	o = maps.Clone(o)
	o[field] = value
	return o
}

func invalidJSON(ctx context.Context, r *run) {
	refuseAll(ctx, r, func(p *pod) []wrong {
		whole := asJSON(valid(p))
		return []wrong{
			{"an empty body", ""},
			{"no JSON", "podUID=1&count=2"},
			{"half a body", whole[:len(whole)/2]},
			{"something after the body", whole + whole},
			{"an array", "[" + whole + "]"},
			{"null", "null"},
		}
	})
}

func invalidFields(ctx context.Context, r *run) {
	refuseAll(ctx, r, func(p *pod) []wrong {
		var all []wrong
		for _, field := range []string{"cluster", "namespace", "pod", "tenant", "node"} {
			all = append(all,
				wrong{field + " is missing", valid(p, field)},
				wrong{field + " is empty", with(valid(p), field, "")},
				wrong{field + " is a number", with(valid(p), field, 1)},
			)
		}
		return append(all,
			wrong{"generation is negative", with(valid(p), "generation", -1)},
			wrong{"generation is a string", with(valid(p), "generation", "1")},
		)
	})
}

func invalidRequests(ctx context.Context, r *run) {
	refuseAll(ctx, r, func(p *pod) []wrong {
		first := p.ask.Requests[0]
		good := object{"type": first.Type, "pool": first.Pool, "count": 1}
		requests := func(list ...any) object { return with(valid(p), "requests", list) }
		all := []wrong{
			{"requests are missing", valid(p, "requests")},
			{"requests are empty", with(valid(p), "requests", []any{})},
			{"requests are an object", with(valid(p), "requests", good)},
			{"type is unknown", requests(with(good, "type", "xf"))},
			{"pool is empty", requests(with(good, "pool", ""))},
			{"the second request is wrong", requests(good, with(good, "count", 0))},
		}
		for _, field := range slices.Sorted(maps.Keys(good)) {
			o := maps.Clone(good)
			delete(o, field)
			all = append(all, wrong{field + " is missing", requests(o)})
		}
		for _, count := range []any{0, -1, 1.5, "2"} {
			all = append(all, wrong{"count is " + asJSON(count), requests(with(good, "count", count))})
		}
		return all
	})
}

func invalidHuge(ctx context.Context, r *run) {
	refuseAll(ctx, r, func(p *pod) []wrong {
		request := object{"type": p.ask.Requests[0].Type, "pool": p.ask.Requests[0].Pool}
		return []wrong{
			{"count is a billion", with(valid(p), "requests", []any{with(request, "count", int64(1e9))})},
			{"count is more than 64 bits", with(valid(p), "requests", []any{with(request, "count", 1e30)})},
		}
	})
	cluster := r.newCluster()
	p := r.newPods(cluster, 1)[0]
	body := asJSON(with(valid(p), "pod", strings.Repeat("p", 2<<20)))
	got, err := r.askOnce(ctx, http.MethodPut, p.path(), nil, []byte(body))
	if err != nil { // who does not read all of it may cut the connection before the answer is seen
		got = &answer{question: "PUT: " + err.Error(), status: http.StatusRequestEntityTooLarge, body: []byte(`{"reason":"Cut"}`)}
	}
	const what = "a pod's name of 2 MiB"
	r.madeNothing(ctx, cluster, what, got)
	got.refused(what)
}

func invalidUID(ctx context.Context, r *run) {
	cluster := r.newCluster()
	for _, uid := range []string{"-a", "a-", "a b", "ä", strings.Repeat("a", 64)} {
		p := r.podIn(cluster, types.UID(uid))
		got, what := p.put(ctx), "pod UID "+asJSON(uid)
		r.madeNothing(ctx, cluster, what, got)
		r.pods = slices.DeleteFunc(r.pods, func(other *pod) bool { return other == p }) // a release would be refused too
		got.refused(what)
	}
}

func invalidQuery(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	cluster := p.query()
	set := func(name, value string) url.Values { return url.Values{"cluster": cluster["cluster"], name: {value}} }
	for _, wrong := range []struct {
		what, method, path string
		query              url.Values
	}{
		{"get without a cluster", http.MethodGet, p.path(), nil},
		{"list without a cluster", http.MethodGet, allocationsPath, nil},
		{"list with limit 0", http.MethodGet, allocationsPath, set("limit", "0")},
		{"list with a limit that is no number", http.MethodGet, allocationsPath, set("limit", "many")},
		{"release without a cluster", http.MethodDelete, p.path(), nil},
		{"release with an empty cluster", http.MethodDelete, p.path(), url.Values{"cluster": {""}}},
		{"release with a negative generation", http.MethodDelete, p.path(), set("generation", "-1")},
		{"release with a generation that is no number", http.MethodDelete, p.path(), set("generation", "last")},
		{"release with a negative minAgeSeconds", http.MethodDelete, p.path(), set("minAgeSeconds", "-1")},
		{"release with minAgeSeconds that is no number", http.MethodDelete, p.path(), set("minAgeSeconds", "5m")},
	} {
		got := r.mustAsk(ctx, wrong.method, wrong.path, wrong.query, nil)
		p.unchanged(ctx, first, "after a "+wrong.what)
		got.refused(wrong.what)
	}
}

func errorsProblem(ctx context.Context, r *run) {
	p := r.newPod()
	p.ensure(ctx)
	unknown := r.newPod()
	for _, got := range []*answer{
		r.mustAsk(ctx, http.MethodGet, unknown.path(), unknown.query(), nil),
		p.put(ctx, p.moved()),
		p.put(ctx, func(a *tenant.EnsureRequest) { a.Pod += "-other" }),
		unknown.put(ctx, func(a *tenant.EnsureRequest) { a.Pod = "" }),
		r.mustAsk(ctx, http.MethodGet, allocationsPath, nil, nil),
	} {
		mediaType, _, err := mime.ParseMediaType(got.header.Get("Content-Type"))
		if err != nil || mediaType != tenant.ProblemContentType {
			failf("%s: Content-Type %q; want %s", got, got.header.Get("Content-Type"), tenant.ProblemContentType)
		}
		problem, err := got.decodeProblem()
		if err != nil || problem.Status != 0 && problem.Status != got.status || !reasonPattern.MatchString(problem.Reason) || problem.Detail == "" {
			failf("%s; want its own status, a reason of one CamelCase word, and a detail", got)
		}
	}
}
