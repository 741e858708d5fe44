package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"tenant.network/tenant-webhook/pkg/tenant"
)

func TestFaults(t *testing.T) {
	tests := []struct {
		name      string
		fault     Fault
		wantActed bool
		wantText  string // empty: the ensure succeeds
		wantKind  func(error) bool
	}{
		{name: "a status is answered without acting", fault: Fault{Status: 503, RetryAfterSeconds: 7}, wantText: "503 Fault: a fault was asked for", wantKind: tenant.IsUnavailable},
		{name: "a final status is final", fault: Fault{Status: 403}, wantText: "403", wantKind: tenant.IsFinal},
		{name: "a dropped request is not acted upon", fault: Fault{DropRequest: true}, wantText: "EOF", wantKind: tenant.IsUnavailable},
		{name: "a dropped reply is", fault: Fault{DropReply: true}, wantActed: true, wantText: "EOF", wantKind: tenant.IsUnavailable},
		{name: "garbage comes after acting", fault: Fault{Body: "garbage"}, wantActed: true, wantText: "not the JSON", wantKind: tenant.IsUnavailable},
		{name: "half an answer comes after acting", fault: Fault{Body: "half"}, wantActed: true, wantText: "broke off", wantKind: tenant.IsUnavailable},
		{name: "latency delays and no more", fault: Fault{LatencyMillis: 1}, wantActed: true},
		{name: "the tenant's requests are hit", fault: Fault{Tenant: "blue", Status: 500}, wantText: "500", wantKind: tenant.IsUnavailable},
		{name: "another tenant's rule must not hit", fault: Fault{Tenant: "red", Status: 500}, wantActed: true},
		{name: "another operation's rule must not hit", fault: Fault{Operation: opList, Status: 500}, wantActed: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e, client := served(t, Options{})
			require.NoError(t, e.SetFaults([]Fault{test.fault}))
			_, err := client.Ensure(t.Context(), podUID, ask())
			if test.wantText == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.wantText)
				assert.True(t, test.wantKind(err))
				var e *tenant.Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, time.Duration(test.fault.RetryAfterSeconds)*time.Second, e.RetryAfter)
			}
			require.NoError(t, e.SetFaults(nil))
			_, err = client.Get(t.Context(), "c1", podUID)
			assert.Equal(t, test.wantActed, err == nil, "%v", err)
		})
	}
}

func TestFaultsFalsifyTheAnswerOnly(t *testing.T) {
	e, client := served(t, Options{})
	other, err := client.Ensure(t.Context(), "other", ask())
	require.NoError(t, err)
	truth, err := client.Ensure(t.Context(), podUID, ask())
	require.NoError(t, err)
	names := func(networks []tenant.Network) (all []string) {
		for _, n := range networks {
			all = append(all, n.Namespace+"/"+n.Name+"/"+n.Pool)
		}
		return all
	}
	want := names(truth.Networks)
	foreign := names(other.Networks[:1])[0]
	for how, wrong := range map[string][]string{
		"+1":             append(append([]string{}, want...), "team-a/"+truth.Networks[2].Name+"-extra/nvidia.com/pf"),
		"-1":             want[:2],
		"duplicate":      {want[0], want[1], want[0]},
		"foreign":        {want[0], want[1], strings.Replace(foreign, "nvidia.com/vf", "nvidia.com/pf", 1)},
		"wrongPool":      {want[0], want[1], "team-a/" + truth.Networks[2].Name + "/example.com/wrong"},
		"wrongNamespace": {want[0], want[1], "wrong-" + want[2]},
	} {
		require.NoError(t, e.SetFaults([]Fault{{Operation: opEnsure, Networks: how}}))
		got, err := client.Ensure(t.Context(), podUID, ask())
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(wrong, names(got.Networks)), how)
		got, err = client.Get(t.Context(), "c1", podUID)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(want, names(got.Networks)), how)
	}
}

func TestTimesAreCountedAndTheNextRuleTakesOver(t *testing.T) {
	e, client := served(t, Options{})
	require.NoError(t, e.SetFaults([]Fault{{Operation: opHealthy, Status: 500, Times: 2}, {Operation: opHealthy, Status: 418, Times: 1}}))
	require.ErrorContains(t, client.Healthy(t.Context()), "500")
	assert.Equal(t, 1, e.Faults()[0].Times)
	require.ErrorContains(t, client.Healthy(t.Context()), "500")
	require.ErrorContains(t, client.Healthy(t.Context()), "418")
	require.NoError(t, client.Healthy(t.Context()))
	assert.Empty(t, e.Faults())
}

// lines passes the request log's lines on.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestHoldLastsUntilTheRulesAreReplaced(t *testing.T) {
	log := make(lines, 100)
	e, client := served(t, Options{RequestLog: NewRequestLog(log)})
	require.NoError(t, e.SetFaults([]Fault{{Operation: opEnsure, Hold: true, Times: 2}}))
	ended := make(chan error)
	go func() {
		_, err := client.Ensure(t.Context(), podUID, ask())
		ended <- err
	}()
	require.Eventually(t, func() bool { return e.Faults()[0].Times == 1 }, 30*time.Second, time.Millisecond)
	_, err := client.Get(t.Context(), "c1", podUID)
	assert.True(t, tenant.IsNotFound(err), "must not have acted yet")
	require.NoError(t, e.SetFaults(nil))
	require.NoError(t, <-ended)

	require.NoError(t, e.SetFaults([]Fault{{Hold: true, Times: 2}}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- client.Release(ctx, "c1", podUID, 0) }()
	require.Eventually(t, func() bool { return e.Faults()[0].Times == 1 }, 30*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	for !strings.Contains(<-log, `"operation":"release","method":"DELETE"`) { // the mock has noticed
	}
	require.NoError(t, e.SetFaults(nil))
	_, err = client.Get(t.Context(), "c1", podUID)
	require.NoError(t, err, "a caller that went away is not served after all")
}

func post(t *testing.T, url, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func TestControl(t *testing.T) {
	e := New(Options{})
	server := httptest.NewServer(e.Handler())
	defer server.Close()
	tests := []struct {
		name, method, path, body string
		wantStatus               int
		want                     string
	}{
		{"rules are replaced and shown", "PUT", "/mock/faults", `[{"operation":"get","status":500}]`, 200, `[{"operation":"get","status":500}]`},
		{"a refused list must not replace the rules", "PUT", "/mock/faults", `[{"status":503},{"operation":"got","status":1}]`, 400, `[1].operation: one of`},
		{"a misspelt field is refused", "PUT", "/mock/faults", `[{"latency":1}]`, 400, `unknown field \"latency\"`},
		{"trailing text is refused", "PUT", "/mock/faults", `[] []`, 400, "goes on after its end"},
		{"a rule that does nothing is refused", "PUT", "/mock/faults", `[{"operation":"get"}]`, 400, "[0].the rule does nothing"},
		{"two outcomes are refused", "PUT", "/mock/faults", `[{"dropReply":true,"status":500}]`, 400, "only one of"},
		{"an unknown corruption is refused", "PUT", "/mock/faults", `[{"networks":"-2"}]`, 400, "networks: one of"},
		{"a Retry-After without status is refused", "PUT", "/mock/faults", `[{"retryAfterSeconds":1,"hold":true}]`, 400, "retryAfterSeconds"},
		{"the rules are as they were", "GET", "/mock/faults", "", 200, `[{"operation":"get","status":500}]`},
		{"rules are dropped", "DELETE", "/mock/faults", "", 204, ""},
		{"none are left", "GET", "/mock/faults", "", 200, "[]"},
		{"forgetting wants a word", "POST", "/mock/forget", `{}`, 400, "either podUID or all"},
		{"forgetting both ways is refused", "POST", "/mock/forget", `{"podUID":"a","all":true}`, 400, "either podUID or all"},
		{"all is forgotten", "POST", "/mock/forget", `{"all":true}`, 200, `{"forgotten":0}`},
		{"a body that is no ensure is refused", "PUT", "/v1/allocations/a", `{`, 400, "no ensure request"},
		{"a list without cluster is refused", "GET", "/v1/allocations", "", 400, "cluster is missing"},
		{"a page that is too large is refused", "GET", "/v1/allocations?cluster=c&limit=501", "", 400, "limit is from 1 to 500"},
		{"a limit that is no number is refused", "GET", "/v1/allocations?cluster=c&limit=x", "", 400, "limit is no number"},
		{"a foreign token is refused", "GET", "/v1/allocations?cluster=c&continue=*", "", 400, "continue is no token"},
		{"a release without cluster is refused", "DELETE", "/v1/allocations/a", "", 400, "cluster is missing"},
		{"a negative generation is refused", "DELETE", "/v1/allocations/a?cluster=c&generation=-1", "", 400, "must not be negative"},
		{"a UID that is no label is refused", "GET", "/v1/allocations/a%20b?cluster=c", "", 400, `pod UID \"a b\"`},
		{"an endless body is not read", "PUT", "/v1/allocations/a", strings.Repeat(" ", maxBodyBytes+1), 400, "too large"},
		{"a body that is too long is not taken for rules", "PUT", "/mock/faults", strings.Repeat(" ", maxBodyBytes+1), 400, "too large"},
	}
	for _, test := range tests {
		status, text := post(t, server.URL, test.method, test.path, test.body)
		assert.Equal(t, test.wantStatus, status, test.name)
		assert.Contains(t, text, test.want, test.name)
	}
}

func TestRequestLogTellsTheTruth(t *testing.T) {
	var out bytes.Buffer
	clock := clocktesting.NewFakeClock(start)
	e := New(Options{RequestLog: NewRequestLog(&out), Clock: clock})
	server := httptest.NewServer(e.Handler())
	client, err := tenant.New(tenant.Config{URL: server.URL, Retries: -1})
	require.NoError(t, err)
	truth, err := client.Ensure(t.Context(), podUID, ask())
	require.NoError(t, err)
	require.NoError(t, e.SetFaults([]Fault{{Operation: opEnsure, Networks: "-1"}, {Operation: opRelease, DropReply: true}, {Operation: opList, DropRequest: true}}))
	_, err = client.Ensure(t.Context(), podUID, ask())
	require.NoError(t, err)
	require.Error(t, client.Release(t.Context(), "c1", podUID, truth.Generation))
	_, err = client.List(t.Context(), "c1")
	require.Error(t, err)
	_, _ = post(t, server.URL, "PUT", "/v1/allocations/a", "no JSON")
	server.Close() // waits for the handlers, which write after they have answered

	var got []Record
	decoder := json.NewDecoder(&out)
	for decoder.More() {
		var record Record
		require.NoError(t, decoder.Decode(&record))
		got = append(got, record)
	}
	require.Len(t, got, 5)
	var sentAsk tenant.EnsureRequest
	require.NoError(t, json.Unmarshal(got[0].Body, &sentAsk))
	assert.Empty(t, cmp.Diff(ask(), sentAsk))
	for i, record := range got[:3] {
		assert.True(t, start.Equal(record.Time))
		require.NotNil(t, record.Allocation, i)
		assert.Equal(t, truth.Networks, record.Allocation.Networks, i)
	}
	assert.Equal(t, []any{opRelease, "DELETE", true, 204, 0}, []any{got[2].Operation, got[2].Method, got[2].Acted, got[2].Status, got[2].Sent})
	assert.Contains(t, got[2].Path, "?cluster=c1&generation=1")
	assert.True(t, got[2].Fault.DropReply)
	assert.Equal(t, []any{opList, false, 0, 0}, []any{got[3].Operation, got[3].Acted, got[3].Status, got[3].Sent})
	assert.Equal(t, `"no JSON"`, string(got[4].Body))
	assert.Equal(t, []int{400, 400}, []int{got[4].Status, got[4].Sent})
}
