package conformance

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned/fake"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/mock/nad"
)

// judged runs the suite against a handler and returns the result and the output.
func judged(ctx context.Context, t *testing.T, handler http.Handler, change ...func(*Config)) (Result, string, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	config := Config{
		URL: server.URL, Timeout: 30 * time.Second, Namespace: "team-a", VFPool: "nvidia.com/vf", PFPool: "rdma/shared",
	}
	for _, c := range change {
		c(&config)
	}
	var out strings.Builder
	result, err := Run(ctx, config, &out)
	return result, out.String(), err
}

func TestTheMockKeepsTheContract(t *testing.T) {
	t.Parallel()
	e := engine.New(engine.Options{})
	result, out, err := judged(t.Context(), t, e.Handler())
	require.NoError(t, err)
	assert.Empty(t, result.Failed, out)
	assert.Contains(t, out, "✓ ensure/makes ")
	assert.Contains(t, out, "- networks/gone ")
	assert.Regexp(t, `\nconformance: ok clauses=\d+ skipped=4\n$`, out)
	assert.Zero(t, e.Forget(""), "something was left behind")
}

func TestTheMockKeepsTheContractInACluster(t *testing.T) {
	t.Parallel()
	cluster := fake.NewSimpleClientset()
	e := engine.New(engine.Options{Networks: nad.New(cluster)})
	result, out, err := judged(t.Context(), t, e.Handler(), func(c *Config) { c.Networks = cluster })
	require.NoError(t, err)
	assert.Empty(t, result.Failed, out)
	assert.Empty(t, result.Skipped)
	assert.Regexp(t, `\nconformance: ok clauses=\d+\n$`, out)
	assert.Zero(t, e.Forget(""), "something was left behind")
	left, err := cluster.K8sCniCncfIoV1().NetworkAttachmentDefinitions("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, left.Items)
}

func TestOnePoolIsEnough(t *testing.T) {
	t.Parallel()
	for _, without := range []func(*Config){func(c *Config) { c.VFPool = "" }, func(c *Config) { c.PFPool = "" }} {
		result, out, err := judged(t.Context(), t, engine.New(engine.Options{}).Handler(), without)
		require.NoError(t, err)
		assert.Empty(t, result.Failed, out)
	}
}

func TestARunThatIsCutShortLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	e := engine.New(engine.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	requests := atomic.Int64{}
	_, out, err := judged(ctx, t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 30 {
			cancel()
		}
		e.Handler().ServeHTTP(w, r)
	}))
	require.ErrorIs(t, err, context.Canceled)
	assert.NotContains(t, out, "conformance:", "there is no verdict")
	assert.Contains(t, out, "✓ cleanup ")
	assert.Zero(t, e.Forget(""), "something was left behind")
}

func TestAnAskIsRepeatedAsTheContractHasIt(t *testing.T) {
	t.Parallel()
	e := engine.New(engine.Options{})
	requests := atomic.Int64{}
	result, out, err := judged(t.Context(), t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1)%50 == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		e.Handler().ServeHTTP(w, r)
	}))
	require.NoError(t, err)
	assert.Empty(t, result.Failed, out)
}

func TestNobodyThere(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	server.Close()
	_, out, err := judged(t.Context(), t, nil, func(c *Config) { c.URL = server.URL })
	assert.ErrorContains(t, err, "no answer")
	assert.Empty(t, out)
}

func TestAWrongConfigIsRefused(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Config{Node: "n", OtherNode: "n"}, &strings.Builder{})
	for _, want := range []string{"URL", "namespace", "pools", "nodes"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestClausesAreNamedOnceAndNeedEarlierOnes(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, clause := range append(Clauses(), leavesNothing) {
		assert.False(t, seen[clause.ID], clause.ID)
		for _, id := range clause.needs {
			assert.True(t, seen[id], "%s needs %s, which does not come before it", clause.ID, id)
		}
		assert.Regexp(t, `^[A-Z].*\.$`, clause.Sentence)
		seen[clause.ID] = true
	}
}
