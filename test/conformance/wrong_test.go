package conformance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// exchange is a request on its way to the right implementation, and the answer on its way back.
type exchange struct {
	e      *engine.Engine
	right  http.Handler
	crowd  *crowd
	before int // steps of the crowd
	clause string
	ctx    context.Context
	method string
	path   string
	uid    types.UID // empty for a list and for health
	query  map[string]string
	body   []byte
	ask    tenant.EnsureRequest // of a PUT, as far as it can be read

	status int
	header http.Header
	answer []byte
}

func (x *exchange) cluster() string { return cmp.Or(x.query["cluster"], x.ask.Cluster) }
func (x *exchange) key() string     { return x.cluster() + "/" + string(x.uid) }
func (x *exchange) isEnsure() bool  { return x.method == http.MethodPut }
func (x *exchange) isRead() bool    { return x.method == http.MethodGet && x.uid != "" }
func (x *exchange) isDelete() bool  { return x.method == http.MethodDelete }
func (x *exchange) isList() bool    { return x.path == allocationsPath }

// present is the true allocation, nil if there is none.
func (x *exchange) present() *tenant.Allocation {
	a, _ := x.e.Get(x.cluster(), x.uid)
	return a
}

// do lets the right implementation answer.
func (x *exchange) do() {
	target := x.path
	for i, name := range slices.Sorted(maps.Keys(x.query)) {
		target += map[bool]string{true: "?", false: "&"}[i == 0] + name + "=" + x.query[name]
	}
	recorder := httptest.NewRecorder()
	x.right.ServeHTTP(recorder, httptest.NewRequest(x.method, target, bytes.NewReader(x.body)).WithContext(x.ctx))
	x.status, x.header, x.answer = recorder.Code, recorder.Header(), recorder.Body.Bytes()
}

// say replaces the answer.
func (x *exchange) say(status int, answer any) {
	x.status, x.answer = status, nil
	if answer != nil {
		x.answer, _ = json.Marshal(answer)
	}
}

// resend replaces the ensure.
func (x *exchange) resend(change func(*tenant.EnsureRequest)) {
	change(&x.ask)
	x.body, _ = json.Marshal(x.ask)
}

// dropPositive leaves a number out of the query, but not one that is none.
func (x *exchange) dropPositive(name string) {
	if n, err := strconv.Atoi(x.query[name]); err == nil && n > 0 {
		delete(x.query, name)
	}
}

// edit changes every allocation in the answer.
func (x *exchange) edit(change func(*tenant.Allocation)) {
	var problem tenant.Problem
	var list tenant.AllocationList
	var one tenant.Allocation
	switch {
	case x.status == http.StatusConflict && json.Unmarshal(x.answer, &problem) == nil && problem.Allocation != nil:
		change(problem.Allocation)
		x.say(x.status, problem)
	case x.status != http.StatusOK:
	case x.isList() && json.Unmarshal(x.answer, &list) == nil:
		for i := range list.Allocations {
			change(&list.Allocations[i])
		}
		x.say(x.status, list)
	case x.uid != "" && json.Unmarshal(x.answer, &one) == nil:
		change(&one)
		x.say(x.status, one)
	}
}

// wrongly serves an engine through a handler that makes what it will of each exchange.
func wrongly(e *engine.Engine, misbehave func(*exchange)) http.Handler {
	var c crowd
	right := e.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{e: e, right: right, crowd: &c, ctx: r.Context(), method: r.Method, path: r.URL.EscapedPath(), query: map[string]string{}}
		for name, values := range r.URL.Query() {
			x.query[name] = values[0]
		}
		x.body, _ = io.ReadAll(r.Body)
		if uid, ok := strings.CutPrefix(r.URL.Path, allocationsPath+"/"); ok {
			x.uid = types.UID(uid)
		}
		if _, clause, ok := strings.Cut(r.UserAgent(), " ("); ok {
			x.clause = strings.TrimSuffix(clause, ")")
		}
		if json.Unmarshal(x.body, &x.ask) != nil {
			x.ask = tenant.EnsureRequest{}
		}
		x.before = c.step(x.uid, 0)
		c.alone(func() { misbehave(x) })
		c.step(x.uid, 1)
		maps.Copy(w.Header(), x.header)
		w.Header().Del("Content-Length")
		w.WriteHeader(x.status)
		_, _ = w.Write(x.answer)
	})
}

// edited is for what is wrong on the way out only.
func edited(change func(*tenant.Allocation)) func(*exchange) {
	return func(x *exchange) {
		x.do()
		x.edit(change)
	}
}

// outcome of one run against a wrong implementation.
type outcome struct {
	result Result
	out    string
	err    error
	left   int
}

// allAtOnce runs the suite against many: a run is mostly waiting for a second to pass.
func allAtOnce(t *testing.T, n int, run func(i int) outcome) []outcome {
	t.Helper()
	const most = 16
	outcomes, slots := make([]outcome, n), make(chan struct{}, most)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			outcomes[i] = run(i)
			<-slots
		})
	}
	wg.Wait()
	return outcomes
}

// wrongImplementation breaks the contract in one way; wantBroken has the clauses that must say so, and no others.
type wrongImplementation struct {
	name       string
	misbehave  func(*exchange)
	wantBroken string
}

func TestAWrongImplementationFailsByTheClauseThatItBreaks(t *testing.T) {
	t.Parallel()
	tests := slices.Concat(wrongEnsures, wrongGenerations, wrongReleases, wrongAges, wrongLists, wrongRefusals)
	outcomes := allAtOnce(t, len(tests), func(i int) (o outcome) {
		e := engine.New(engine.Options{})
		o.result, o.out, o.err = judged(t.Context(), t, wrongly(e, tests[i].misbehave))
		o.left = e.Forget("")
		return o
	})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := outcomes[i]
			require.NoError(t, o.err)
			assert.Equal(t, strings.Fields(test.wantBroken), o.result.Failed, o.out)
			assert.Contains(t, o.out, "\nconformance: FAILED clause="+strings.ReplaceAll(test.wantBroken, " ", ","))
			if !strings.Contains(test.wantBroken, "cleanup") {
				assert.Zero(t, o.left, "something was left behind")
			}
		})
	}
}

// crowd counts, for each pod, the requests that have looked at the state to act on it later, and those that were answered.
type crowd struct {
	mu    sync.Mutex
	steps map[types.UID]int
	// acting keeps requests apart: each breaks the contract in its one way, and not by what comes in between.
	acting sync.Mutex
}

func (c *crowd) alone(act func()) {
	c.acting.Lock()
	defer c.acting.Unlock()
	act()
}

func (c *crowd) step(uid types.UID, by int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.steps == nil {
		c.steps = map[types.UID]int{}
	}
	c.steps[uid] += by
	return c.steps[uid]
}

// meanwhile lets another request for the same pod come in between, in the clause that sends several at once: one that looks
// at the state as well, or is answered.
func (x *exchange) meanwhile(clause string) {
	if x.clause != clause {
		return
	}
	x.crowd.acting.Unlock()
	defer x.crowd.acting.Lock()
	x.crowd.step(x.uid, 1)
	for own := x.before + 1; x.crowd.step(x.uid, 0) <= own && wait(x.ctx, time.Millisecond) == nil; {
	}
}
