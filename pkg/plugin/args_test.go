package plugin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

const urlVariable = "TENANT_CONTROLLER_URL"

func defaultArgs() *Args {
	return &Args{
		ScoringStrategy:  Spread,
		PoolConfig:       ObjectRef{Namespace: "webhook-system", Name: "resource-pool-config"},
		TenantController: TenantController{MaxConcurrent: 200},
		PreBindTimeout:   metav1.Duration{Duration: 15 * time.Second},
		BindTimeout:      metav1.Duration{Duration: 10 * time.Second},
		Breaker:          BreakerArgs{Failures: 5, Pause: metav1.Duration{Duration: 10 * time.Second}},
	}
}

func TestParseArgs(t *testing.T) {
	full := &Args{
		ScoringStrategy: BinPack,
		PoolConfig:      ObjectRef{Namespace: "ns", Name: "pools"},
		Cluster:         "east",
		TenantController: TenantController{URL: "https://tc.example", Timeout: metav1.Duration{Duration: time.Second}, Retries: -1,
			RetryInterval: metav1.Duration{Duration: 100 * time.Millisecond}, MaxConcurrent: 50},
		PreBindTimeout: metav1.Duration{Duration: 20 * time.Second},
		BindTimeout:    metav1.Duration{Duration: 5 * time.Second},
		Breaker:        BreakerArgs{Failures: 3, Pause: metav1.Duration{Duration: time.Minute}},
	}
	for name, tc := range map[string]struct {
		object runtime.Object
		url    string
		want   *Args
	}{
		"no arguments are the defaults":     {object: nil, want: defaultArgs()},
		"empty arguments are the defaults":  {object: &runtime.Unknown{}, want: defaultArgs()},
		"an empty object is the defaults":   {object: unknown(`{}`), want: defaultArgs()},
		"what YAML leaves out is defaulted": {object: unknown("scoringStrategy: Spread\n"), want: defaultArgs()},
		"YAML is read in full": {want: full, object: unknown(`
scoringStrategy: BinPack
poolConfig: {namespace: ns, name: pools}
cluster: east
tenantController: {url: "https://tc.example", timeout: 1s, retries: -1, retryInterval: 100ms, maxConcurrent: 50}
preBindTimeout: 20s
bindTimeout: 5s
breaker: {failures: 3, pause: 1m}
`)},
		"JSON is read in full": {want: full, object: unknown(`{"scoringStrategy":"BinPack","poolConfig":{"namespace":"ns","name":"pools"},
"cluster":"east","tenantController":{"url":"https://tc.example","timeout":"1s","retries":-1,"retryInterval":"100ms","maxConcurrent":50},
"preBindTimeout":"20s","bindTimeout":"5s","breaker":{"failures":3,"pause":"1m"}}`)},
		"the environment overrides the URL": {
			object: unknown("tenantController: {url: http://from-the-file:1}"),
			url:    "http://localhost:8088",
			want: func() *Args {
				args := defaultArgs()
				args.TenantController.URL = "http://localhost:8088"
				return args
			}(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(urlVariable, tc.url)
			got, err := parseArgs(tc.object)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestParseArgsRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		object runtime.Object
		want   []string
	}{
		"a misspelled field by its name":           {unknown("scoringStrategie: BinPack"), []string{"TenantNetwork", `"scoringStrategie"`}},
		"a misspelled field inside another":        {unknown("breaker: {failure: 3}"), []string{`"failure"`}},
		"a misspelled field in JSON":               {unknown(`{"preBindTimeOuts":"3s"}`), []string{`"preBindTimeOuts"`}},
		"a field that stands twice":                {unknown("cluster: a\ncluster: b"), []string{"cluster"}},
		"what is no YAML":                          {unknown("\t{"), []string{"TenantNetwork"}},
		"a number where a duration belongs":        {unknown("preBindTimeout: 15"), []string{"TenantNetwork"}},
		"a negative number of failures":            {unknown("breaker: {failures: -1}"), []string{"failures"}},
		"an unknown strategy with both known ones": {unknown("scoringStrategy: spread"), []string{"scoringStrategy", `"spread"`, `"Spread"`, `"BinPack"`}},
		"a PreBind timeout that outlives its use":  {unknown("preBindTimeout: 31s"), []string{"preBindTimeout", `"31s"`, "30s"}},
		"a PreBind timeout below a second":         {unknown("preBindTimeout: 5ms"), []string{"preBindTimeout", `"5ms"`, "1s"}},
		"a negative bind timeout":                  {unknown("bindTimeout: -1s"), []string{"bindTimeout", `"-1s"`}},
		"a bind timeout of hours":                  {unknown("bindTimeout: 2h"), []string{"bindTimeout", `"2h0m0s"`, "1m0s"}},
		"a negative number of pods at a time":      {unknown("tenantController: {maxConcurrent: -1}"), []string{"tenantController.maxConcurrent", "-1", "10000"}},
		"a pause of milliseconds":                  {unknown("breaker: {pause: 3ms}"), []string{"breaker.pause", `"3ms"`}},
		"arguments of another plugin's kind":       {&config.NodeAffinityArgs{}, []string{"TenantNetwork", "*runtime.Unknown", "*config.NodeAffinityArgs"}},
	} {
		t.Run(name, func(t *testing.T) {
			args, err := parseArgs(tc.object)
			require.Nil(t, args)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestClientConfigKeepsFilesFromTheEnvironment(t *testing.T) {
	t.Setenv(urlVariable, "https://localhost:8088")
	t.Setenv("TENANT_CONTROLLER_TOKEN_FILE", "/token")
	args, err := parseArgs(unknown("tenantController: {timeout: 3s, retries: 1, retryInterval: 1s}"))
	require.NoError(t, err)
	got := args.clientConfig()
	require.Equal(t, "https://localhost:8088", got.URL)
	require.Equal(t, "/token", got.TokenFile)
	require.Equal(t, 3*time.Second, got.Timeout)
	require.Equal(t, 1, got.Retries)
	require.Equal(t, time.Second, got.RetryInterval)
}

func unknown(raw string) runtime.Object { return &runtime.Unknown{Raw: []byte(raw)} }
