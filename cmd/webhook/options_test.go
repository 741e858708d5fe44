package main

import (
	"io"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	logsapi "k8s.io/component-base/logs/api/v1"

	"tenant.network/tenant-webhook/pkg/tenant"
)

func TestMain(m *testing.M) {
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged // each parse of a test applies the same
	m.Run()
}

func parse(args ...string) (*options, error) {
	o := newOptions()
	o.flags.SetOutput(io.Discard)
	return o, o.parse(args)
}

func TestParseMustNotAccept(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"an unknown flag", []string{"--webhok-port=1"}, "reading flags: unknown flag: --webhok-port"},
		{"a word that is no flag", []string{"run"}, `unexpected argument "run"; there are only flags`},
		{"a port that is no number", []string{"--webhook-port=https"}, `reading flags: invalid argument "https" for "--webhook-port" flag`},
		{"port 0", []string{"--webhook-port=0"}, "--webhook-port: 0 must be from 1 to 65535"},
		{"a port beyond the last", []string{"--webhook-port=65536"}, "--webhook-port: 65536 must be from 1 to 65535"},
		{"a time without unit", []string{"--refresh-interval=30"}, `invalid argument "30" for "--refresh-interval" flag`},
		{"a refresh that never rests", []string{"--refresh-interval=0"}, "--refresh-interval: 0s must be at least 1s"},
		{"too short a refresh", []string{"--refresh-interval=999ms"}, "--refresh-interval: 999ms must be at least 1s"},
		{"no wait for the sandbox", []string{"--sandbox-wait=0s"}, "--sandbox-wait: 0s must be at least 1s"},
		{"a negative force", []string{"--force-release-after=-1s"}, "--force-release-after: -1s must be at least 0s"},
		{"a negative drain", []string{"--drain-timeout=-1s"}, "--drain-timeout: -1s must be at least 0s"},
		{"a negative delay of the shutdown", []string{"--shutdown-delay=-1s"}, "--shutdown-delay: -1s must be at least 0s"},
		{"no Secret for the certificate", []string{"--cert-secret="}, "--cert-secret: must name an object; it is empty"},
		{"no Service", []string{"--webhook-service="}, "--webhook-service: must name an object; it is empty"},
		{"no webhook configuration", []string{"--webhook-config="}, "--webhook-config: must name an object; it is empty"},
		{"a rotation that is neither on nor off", []string{"--cert-rotate=perhaps"}, `invalid argument "perhaps" for "--cert-rotate" flag`},
		{"negative retries", []string{"--tenant-controller-retries=-1"}, "--tenant-controller-retries: -1 must be from 0 to 10"},
		{"more retries than a pod can wait for", []string{"--tenant-controller-retries=11"}, "--tenant-controller-retries: 11 must be from 0 to 10"},
		{"no time for an attempt, which would be the default", []string{"--tenant-controller-timeout=0"}, "--tenant-controller-timeout: 0s must be at least 1ms"},
		{"a negative time for an attempt", []string{"--tenant-controller-timeout=-2s"}, "--tenant-controller-timeout: -2s must be at least 1ms"},
		{"no pause between attempts, which would be the default", []string{"--tenant-controller-retry-interval=0s"}, "--tenant-controller-retry-interval: 0s must be at least 1ms"},
		{"a negative pause", []string{"--tenant-controller-retry-interval=-1ms"}, "--tenant-controller-retry-interval: -1ms must be at least 1ms"},
		{"a leader election that is neither on nor off", []string{"--leader-elect=maybe"}, `invalid argument "maybe" for "--leader-elect" flag`},
		{"an unknown log format", []string{"--logging-format=xml"}, `format: Invalid value: "xml"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse(tc.args...)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestParseAccepts(t *testing.T) {
	t.Run("nothing at all", func(t *testing.T) {
		t.Setenv("TENANT_CONTROLLER_URL", "")
		o, err := parse()
		require.NoError(t, err)
		assert.Equal(t, "webhook-system", o.podNamespace)
		assert.Equal(t, "resource-pool-config", o.poolConfig)
		assert.Zero(t, o.forceRelease, "force must not be on unless somebody asks for it")
		assert.True(t, o.leaderElect)
		assert.Empty(t, o.certDir, "the certificate comes from the Secret")
		assert.True(t, o.certRotate)
		assert.Equal(t, 30*time.Second, o.refresh)
		assert.Equal(t, 2, o.tenant.Retries)
		assert.Equal(t, 2*time.Second, o.tenant.Timeout)
		assert.Equal(t, 500*time.Millisecond, o.tenant.RetryInterval)
	})
	t.Run("the environment's tenant-controller", func(t *testing.T) {
		t.Setenv("TENANT_CONTROLLER_URL", "http://localhost:8088")
		o, err := parse()
		require.NoError(t, err)
		assert.Equal(t, "http://localhost:8088", o.tenant.URL)
	})
	t.Run("a flag goes before the environment", func(t *testing.T) {
		t.Setenv("TENANT_CONTROLLER_URL", "http://localhost:8088")
		o, err := parse("--tenant-controller-url=http://other:1", "--force-release-after=10m", "--tenant-controller-retries=5")
		require.NoError(t, err)
		assert.Equal(t, "http://other:1", o.tenant.URL)
		assert.Equal(t, 10*time.Minute, o.forceRelease)
		assert.Equal(t, 5, o.tenant.Retries)
	})
	t.Run("the most retries and the shortest times", func(t *testing.T) {
		o, err := parse("--tenant-controller-retries=10", "--tenant-controller-timeout=1ms", "--tenant-controller-retry-interval=1ms")
		require.NoError(t, err)
		assert.Equal(t, tenant.MaxRetries, o.tenant.Retries)
		assert.Equal(t, time.Millisecond, o.tenant.Timeout)
		assert.Equal(t, time.Millisecond, o.tenant.RetryInterval)
	})
	t.Run("no retries, which is not the default number of them", func(t *testing.T) {
		o, err := parse("--tenant-controller-retries=0")
		require.NoError(t, err)
		assert.Negative(t, o.tenant.Retries)
	})
	t.Run("a wish for help, which is no mistake", func(t *testing.T) {
		_, err := parse("--help")
		require.ErrorIs(t, err, pflag.ErrHelp)
	})
}
