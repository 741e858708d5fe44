package main

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tenant.network/tenant-webhook/mock/engine"
)

func TestTheVerdictIsTheLastLineAndTheExit(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	right := engine.New(engine.Options{}).Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		right.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)

	var out strings.Builder
	require.NoError(t, run(t.Context(), []string{"-url", server.URL, "-token-file", token, "-timeout", "30s"}, &out), &out)
	assert.Regexp(t, `\nconformance: ok clauses=\d+ skipped=4\n$`, out.String())

	out.Reset()
	err := run(t.Context(), []string{"-url", server.URL, "-timeout", "30s"}, &out)
	assert.ErrorIs(t, err, errBroken)
	assert.Regexp(t, `\nconformance: FAILED clause=healthz,ensure/makes,.* skipped=\d+\n$`, out.String())
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"no URL", nil, "URL"},
		{"an argument that is no flag", []string{"http://localhost"}, `unexpected argument "http://localhost"`},
		{"a kubeconfig that is not there", []string{"-kubeconfig", "/nowhere"}, `-kubeconfig "/nowhere"`},
		{"a token that is not there", []string{"-url", "http://localhost", "-token-file", "/nowhere"}, "/nowhere"},
		{"a certificate without a key", []string{"-url", "https://localhost", "-cert-file", "/nowhere"}, "authentication"},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.ErrorContains(t, run(t.Context(), test.args, &strings.Builder{}), test.want)
		})
	}
	assert.ErrorIs(t, run(t.Context(), []string{"-help"}, &strings.Builder{}), flag.ErrHelp)
}
