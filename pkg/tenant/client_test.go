package tenant

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

const testUID = types.UID("7d3b5d32-9c6e-4c1c-8f6e-0b8f6f3f3a52")

var testAsk = EnsureRequest{
	Cluster: "c1", Namespace: "team-a", Pod: "train-0", Tenant: "team-a", Node: "n1",
	Requests: []Request{{Type: "vf", Pool: "nvidia.com/vf", Count: 1}},
}

var testAllocation = Allocation{
	PodUID: testUID, Cluster: "c1", Namespace: "team-a", Pod: "train-0", Tenant: "team-a", Node: "n1",
	Requests:   testAsk.Requests,
	Networks:   []Network{{Namespace: "team-a", Name: "nad-1", Pool: "nvidia.com/vf"}},
	Generation: 3, AgeSeconds: 7,
}

// quick waits a millisecond between attempts and otherwise as long as the test machine needs.
func quick(url string) Config {
	return Config{URL: url, Timeout: 30 * time.Second, RetryInterval: time.Millisecond, MaxRetryAfter: time.Millisecond}
}

// server answers with the replies in turn, the last one for ever, and counts.
func server(t *testing.T, replies ...http.HandlerFunc) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	var count atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := int(count.Add(1))
		replies[min(n, len(replies))-1](w, r)
	}))
	t.Cleanup(s.Close)
	return s, &count
}

func reply(status int, body any, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		contentType := "application/json"
		if status >= 400 {
			contentType = ProblemContentType
		}
		w.Header().Set("Content-Type", contentType)
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		if text, ok := body.(string); ok {
			_, _ = io.WriteString(w, text)
		} else if body != nil {
			_ = json.NewEncoder(w).Encode(body)
		}
	}
}

func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// half promises the whole allocation and breaks off in the middle.
func half(w http.ResponseWriter, _ *http.Request) {
	body, _ := json.Marshal(testAllocation)
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = w.Write(body[:len(body)/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func endless(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		if _, err := io.WriteString(w, strings.Repeat(" ", 1<<10)); err != nil {
			return
		}
	}
}

func newClient(t *testing.T, config Config) *Client {
	t.Helper()
	client, err := New(config)
	require.NoError(t, err)
	return client
}

func TestEnsure(t *testing.T) {
	good := reply(200, testAllocation)
	other := testAllocation
	other.PodUID = "another"
	truncated, _ := json.Marshal(testAllocation)

	tests := []struct {
		name         string
		replies      []http.HandlerFunc
		change       func(*Config)
		wantAttempts int64
		wantKind     string // "" for success
		wantText     string
	}{
		{name: "a good answer is returned as it is", replies: []http.HandlerFunc{good}, wantAttempts: 1},
		{name: "a 503 is asked again", replies: []http.HandlerFunc{reply(503, nil), good}, wantAttempts: 2},
		{name: "a 500, then a 502 is asked again", replies: []http.HandlerFunc{reply(500, nil), reply(502, nil), good}, wantAttempts: 3},
		{name: "a 429 and a 504 are asked again", replies: []http.HandlerFunc{reply(429, nil), reply(504, nil), good}, wantAttempts: 3},
		{name: "a lost answer is asked again", replies: []http.HandlerFunc{cut, good}, wantAttempts: 2},
		{name: "half an answer is asked again", replies: []http.HandlerFunc{half, good}, wantAttempts: 2},
		{name: "garbage is asked again", replies: []http.HandlerFunc{reply(200, "<html>"), good}, wantAttempts: 2},
		{name: "unknown fields are a newer contract and no error", replies: []http.HandlerFunc{reply(200, strings.Replace(string(truncated), "{", `{"new":1,`, 1))}, wantAttempts: 1},
		{name: "a Retry-After of an hour is capped", replies: []http.HandlerFunc{reply(503, nil, "Retry-After", "3600"), good}, wantAttempts: 2},

		{name: "must not ask more than three times", replies: []http.HandlerFunc{reply(503, Problem{Reason: "Full", Detail: "later"})},
			wantAttempts: 3, wantKind: codeUnavailable, wantText: "tenant-controller: ensure: 503 Full: later"},
		{name: "must not ask again when told so", replies: []http.HandlerFunc{reply(503, nil)}, change: func(c *Config) { c.Retries = -1 },
			wantAttempts: 1, wantKind: codeUnavailable, wantText: "503 Service Unavailable"},
		{name: "must not repeat a 400", replies: []http.HandlerFunc{reply(400, Problem{Reason: "Invalid", Detail: "no such pool"})},
			wantAttempts: 1, wantKind: codeFinal, wantText: "tenant-controller: ensure: 400 Invalid: no such pool"},
		{name: "must not repeat a 422 with an unreadable body", replies: []http.HandlerFunc{reply(422, "{")},
			wantAttempts: 1, wantKind: codeFinal, wantText: "tenant-controller: ensure: 422 Unprocessable Entity"},
		{name: "must not show a proxy's HTML", replies: []http.HandlerFunc{reply(403, "<h1>no</h1>", "Content-Type", "text/html")},
			wantAttempts: 1, wantKind: codeFinal, wantText: "tenant-controller: ensure: 403 Forbidden"},
		{name: "must not repeat a 501", replies: []http.HandlerFunc{reply(501, nil)}, wantAttempts: 1, wantKind: codeUnavailable, wantText: "501"},
		{name: "must not take half an answer for one", replies: []http.HandlerFunc{half}, wantAttempts: 3, wantKind: codeUnavailable, wantText: "broke off"},
		{name: "must not take JSON cut in half for an answer", replies: []http.HandlerFunc{reply(200, string(truncated[:len(truncated)/2]))},
			wantAttempts: 3, wantKind: codeUnavailable, wantText: "not the JSON it should be"},
		{name: "must not take two answers for one", replies: []http.HandlerFunc{reply(200, string(truncated)+string(truncated))},
			wantAttempts: 3, wantKind: codeUnavailable, wantText: "not the JSON it should be"},
		{name: "must not take garbage for an answer", replies: []http.HandlerFunc{reply(200, "<html>")},
			wantAttempts: 3, wantKind: codeUnavailable, wantText: "not the JSON it should be"},
		{name: "must not take null for an answer", replies: []http.HandlerFunc{reply(200, "null")}, wantAttempts: 3, wantKind: codeUnavailable, wantText: "about pod UID"},
		{name: "must not take another pod's answer", replies: []http.HandlerFunc{reply(200, other)}, wantAttempts: 3, wantKind: codeUnavailable, wantText: `about pod UID "another"`},
		{name: "must not take garbage, then a 503, for success", replies: []http.HandlerFunc{reply(200, "x"), reply(503, nil)},
			wantAttempts: 3, wantKind: codeUnavailable, wantText: "ensure: 503"},
		{name: "must not show an earlier answer's status when the last was lost", replies: []http.HandlerFunc{reply(200, "x"), cut},
			wantAttempts: 3, wantKind: codeUnavailable, wantText: "ensure: EOF"},
		{name: "must not read an endless body", replies: []http.HandlerFunc{endless}, change: func(c *Config) { c.MaxBodyBytes = 64 << 10 },
			wantAttempts: 1, wantKind: codeUnavailable, wantText: "too long: more than 65536 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, count := server(t, test.replies...)
			config := quick(s.URL)
			if test.change != nil {
				test.change(&config)
			}
			got, err := newClient(t, config).Ensure(t.Context(), testUID, testAsk)
			assert.Equal(t, test.wantAttempts, count.Load(), "attempts as the server counted them")
			if test.wantKind == "" {
				require.NoError(t, err)
				assert.Empty(t, cmp.Diff(&testAllocation, got))
				return
			}
			require.Error(t, err)
			assert.Nil(t, got)
			assert.Equal(t, test.wantKind, code(err))
			assert.Contains(t, err.Error(), test.wantText)
		})
	}
}

func TestEnsureSendsTheAsk(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "PUT /prefix/v1/allocations/"+string(testUID), r.Method+" "+r.URL.String())
		var got EnsureRequest
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&got))
		assert.Empty(t, cmp.Diff(testAsk, got))
		reply(200, testAllocation)(w, r)
	}))
	defer s.Close()
	_, err := newClient(t, quick(s.URL+"/prefix")).Ensure(t.Context(), testUID, testAsk)
	require.NoError(t, err)
}

func TestConflictCarriesThePresentAllocation(t *testing.T) {
	s, count := server(t, reply(409, Problem{Reason: ReasonStaleGeneration, Allocation: &testAllocation}))
	client := newClient(t, quick(s.URL))
	_, ensureErr := client.Ensure(t.Context(), testUID, testAsk)
	releaseErr := client.Release(t.Context(), "c1", testUID, 2)
	for _, err := range []error{ensureErr, releaseErr} {
		err = fmt.Errorf("wrapped: %w", err)
		assert.True(t, IsConflict(err))
		assert.False(t, IsFinal(err), "the caller tries once more")
		assert.False(t, IsUnavailable(err))
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Empty(t, cmp.Diff(&testAllocation, e.Current))
	}
	assert.EqualValues(t, 2, count.Load(), "a conflict is not repeated by the client")
}

func TestRelease(t *testing.T) {
	notFound := Problem{Reason: ReasonNotFound}
	tests := []struct {
		name       string
		generation int64
		reply      http.HandlerFunc
		wantQuery  string
		wantKind   string
	}{
		{name: "a release names cluster and generation", generation: 3, reply: reply(204, nil), wantQuery: "cluster=c+1&generation=3", wantKind: codeOK},
		{name: "generation 0 is left out", reply: reply(204, nil), wantQuery: "cluster=c+1", wantKind: codeOK},
		{name: "gone already is success", reply: reply(404, notFound), wantQuery: "cluster=c+1", wantKind: codeOK},
		{name: "must not take a proxy's 404 for gone", reply: reply(404, "no such page", "Content-Type", "text/plain"), wantQuery: "cluster=c+1", wantKind: codeFinal},
		{name: "must not take a 403 for gone", reply: reply(403, nil), wantQuery: "cluster=c+1", wantKind: codeFinal},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, http.MethodDelete, r.Method)
				assert.Equal(t, test.wantQuery, r.URL.RawQuery)
				test.reply(w, r)
			})
			err := newClient(t, quick(s.URL)).Release(t.Context(), "c 1", testUID, test.generation)
			assert.Equal(t, test.wantKind, code(err), "%v", err)
		})
	}
}

func TestGet(t *testing.T) {
	s, _ := server(t, reply(200, testAllocation), reply(404, Problem{Reason: ReasonNotFound}))
	client := newClient(t, quick(s.URL))
	got, err := client.Get(t.Context(), "c1", testUID)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(&testAllocation, got))
	assert.Equal(t, 7*time.Second, got.Age())
	_, err = client.Get(t.Context(), "c1", testUID)
	assert.True(t, IsNotFound(err))
	assert.True(t, IsFinal(err))
}

func TestList(t *testing.T) {
	page := func(token string, allocations ...Allocation) http.HandlerFunc {
		return reply(200, AllocationList{Allocations: append([]Allocation{}, allocations...), Continue: token})
	}
	second, foreign := testAllocation, testAllocation
	second.PodUID, foreign.Cluster = "second", "c2"

	tests := []struct {
		name     string
		replies  []http.HandlerFunc
		want     []types.UID
		wantText string
	}{
		{name: "all pages are one list", replies: []http.HandlerFunc{page("t1", testAllocation), page("t2"), page("", second)}, want: []types.UID{testUID, "second"}},
		{name: "an empty list is no error", replies: []http.HandlerFunc{page("")}},
		{name: "must not walk in circles", replies: []http.HandlerFunc{page("t1", testAllocation)}, wantText: "repeats"},
		{name: "must not hand over another cluster's allocations", replies: []http.HandlerFunc{page("", testAllocation, foreign)}, wantText: `cluster "c2"`},
		{name: "must not take any JSON for an empty list", replies: []http.HandlerFunc{reply(200, `{"error":"x"}`)}, wantText: "no allocations field"},
		{name: "must not return half a list", replies: []http.HandlerFunc{page("t1", testAllocation), reply(403, nil)}, wantText: "403"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, _ := server(t, test.replies...)
			got, err := newClient(t, quick(s.URL)).List(t.Context(), "c1")
			if test.wantText != "" {
				require.ErrorContains(t, err, test.wantText)
				assert.Nil(t, got)
				return
			}
			require.NoError(t, err)
			var uids []types.UID
			for _, a := range got {
				uids = append(uids, a.PodUID)
			}
			assert.Equal(t, test.want, uids)
		})
	}
}

func TestListMustNotGoOnForEver(t *testing.T) {
	var n atomic.Int64
	s, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
		reply(200, AllocationList{Allocations: []Allocation{}, Continue: fmt.Sprint(n.Add(1))})(w, r)
	})
	_, err := newClient(t, quick(s.URL)).List(t.Context(), "c1")
	require.ErrorContains(t, err, "no end after 1000 pages")
	assert.True(t, IsUnavailable(err))
}

func TestMustNotOutlastTheCallersContext(t *testing.T) {
	t.Run("a deadline during an attempt is the caller's error and the server's fault", func(t *testing.T) {
		s, _ := server(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := newClient(t, quick(s.URL)).Ensure(ctx, testUID, testAsk)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.True(t, IsUnavailable(err))
	})
	t.Run("a pause that would end after the deadline is not begun", func(t *testing.T) {
		s, count := server(t, reply(503, nil))
		config := quick(s.URL)
		config.RetryInterval = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := newClient(t, config).Healthy(ctx) // would take an hour
		assert.True(t, IsUnavailable(err))
		assert.ErrorContains(t, err, "503")
		assert.EqualValues(t, 1, count.Load())
	})
	t.Run("a cancellation ends the pause and is nobody's fault", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
			reply(503, nil)(w, r)
			cancel()
		})
		config := quick(s.URL)
		config.RetryInterval = time.Hour
		_, err := newClient(t, config).Ensure(ctx, testUID, testAsk)
		require.ErrorIs(t, err, context.Canceled)
		assert.False(t, IsUnavailable(err))
		assert.False(t, IsFinal(err))
		assert.Equal(t, codeCanceled, code(err))
	})
}

// silent is a server that never answers.
type silent struct{ asked int }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked++
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestAnAttemptsOwnTimeoutIsNotTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := quick("http://silent")
		c, server, begun := newClient(t, config), &silent{}, time.Now()
		c.http.HTTPClient.Transport = server
		_, err := c.Ensure(t.Context(), testUID, testAsk)
		require.ErrorContains(t, err, "no answer within 30s")
		assert.True(t, IsUnavailable(err))
		assert.NotErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 3, server.asked)
		assert.Equal(t, 3*config.Timeout+2*config.RetryInterval, time.Since(begun))
	})
}

func TestNobodyListening(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close()
	err := newClient(t, quick(s.URL)).Healthy(t.Context())
	assert.True(t, IsUnavailable(err))
	assert.ErrorContains(t, err, "connection refused")
	assert.NotContains(t, err.Error(), "Get ", "the URL is the operator's and says nothing to the pod's owner")
}

func TestMustNotFollowARedirect(t *testing.T) {
	var mu sync.Mutex
	var visited []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		visited = append(visited, r.URL.Path)
	}))
	defer thief.Close()
	for _, status := range []int{301, 302, 307, 308} {
		s, count := server(t, reply(status, nil, "Location", thief.URL+"/steal"))
		_, err := newClient(t, quick(s.URL)).Ensure(t.Context(), testUID, testAsk)
		assert.True(t, IsUnavailable(err))
		assert.ErrorContains(t, err, "redirects are not followed")
		assert.EqualValues(t, 1, count.Load())
	}
	assert.Empty(t, visited)
}

func TestMustNotSendWhatIsNoKey(t *testing.T) {
	s, count := server(t, reply(200, testAllocation))
	client := newClient(t, quick(s.URL))
	for _, uid := range []types.UID{"", "..", "a/b", "a?b", "a b", types.UID(strings.Repeat("a", 64))} {
		_, err := client.Get(t.Context(), "c1", uid)
		assert.True(t, IsFinal(err), "%q", uid)
	}
	assert.True(t, IsFinal(client.Release(t.Context(), "", testUID, 0)), "no cluster")
	_, err := client.List(t.Context(), "")
	assert.True(t, IsFinal(err))
	assert.Zero(t, count.Load())
}
