package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tenant.network/tenant-webhook/pkg/tenant"
)

func TestRunRefusesBadArguments(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"an unknown flag", []string{"-listn", ":1"}, "listn"},
		{"a stray argument", []string{"serve"}, `unexpected argument "serve"`},
		{"a cluster and none", []string{"-no-cluster", "-kubeconfig", "k"}, "exclude each other"},
		{"a kubeconfig that is not there", []string{"-kubeconfig", "/no/such"}, `-kubeconfig "/no/such"`},
		{"an address that is none", []string{"-no-cluster", "-listen", "nowhere"}, "-listen"},
		{"a log that cannot be written", []string{"-no-cluster", "-request-log", "/no/such/log"}, "-request-log"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.ErrorContains(t, run(t.Context(), test.args, func(net.Addr) {}), test.want)
		})
	}
}

func TestRunServesUntilItIsStopped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests")

	ctx, cancel := context.WithCancel(t.Context())
	serving, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-no-cluster", "-listen", "127.0.0.1:0", "-request-log", file}, func(address net.Addr) { serving <- address })
	}()
	var address net.Addr
	select {
	case address = <-serving:
	case err := <-ended:
		t.Fatalf("it ended with %v", err)
	}
	client, err := tenant.New(tenant.Config{URL: "http://" + address.String()})
	require.NoError(t, err)
	require.NoError(t, client.Healthy(t.Context()))
	cancel()
	require.NoError(t, <-ended)
	lines, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(lines), `"path":"/healthz"`, "%s", lines)
}
