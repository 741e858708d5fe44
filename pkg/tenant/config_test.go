package tenant

import (
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestZeroConfigIsTheDefault(t *testing.T) {
	client := newClient(t, Config{})
	assert.Equal(t, Config{
		URL: "http://tenant-controller:8088", Timeout: 2 * time.Second, Retries: 2, RetryInterval: 500 * time.Millisecond,
		MaxRetryAfter: 2 * time.Second, MaxBodyBytes: 4 << 20,
	}, client.config)
}

func TestConfigFromEnvironment(t *testing.T) {
	environment := map[string]string{
		"TENANT_CONTROLLER_URL": "http://localhost:8088", "TENANT_CONTROLLER_TOKEN_FILE": "t",
		"TENANT_CONTROLLER_CA_FILE": "a", "TENANT_CONTROLLER_CERT_FILE": "c", "TENANT_CONTROLLER_KEY_FILE": "k",
	}
	got := ConfigFromEnvironment(func(key string) string { return environment[key] })
	assert.Equal(t, Config{URL: "http://localhost:8088", TokenFile: "t", CAFile: "a", CertFile: "c", KeyFile: "k"}, got)
}

func TestNewRefuses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	tests := []struct {
		name   string
		config Config
		want   string
	}{
		{"a URL without scheme", Config{URL: "tenant-controller:8088"}, `URL: must start with http:// or https://: "tenant-controller:8088"`},
		{"a URL without host", Config{URL: "http://"}, `URL: has no host`},
		{"a URL that is none, without its password", Config{URL: "http://a:secret@b:x/"}, `URL: is no URL`},
		{"a password in the URL, without quoting it", Config{URL: "http://u:secret@host"}, `"http://u:xxxxx@host"`},
		{"a query", Config{URL: "http://host?x=1"}, "neither query nor fragment"},
		{"a negative timeout", Config{Timeout: -time.Second}, `Timeout: must not be negative, is "-1s"`},
		{"a negative interval", Config{RetryInterval: -1}, `RetryInterval: must not be negative, is "-1ns"`},
		{"too many retries", Config{Retries: 11}, "Retries: at most 10, is 11"},
		{"a negative body", Config{MaxBodyBytes: -1}, "MaxBodyBytes: from 1 to 1073741824, is -1"},
		{"a key without certificate", Config{URL: "https://h", KeyFile: "k"}, `CertFile and KeyFile: both or neither, are "" and "k"`},
		{"a CA for plain http", Config{CAFile: "ca"}, `need https, is "http://tenant-controller:8088"`},
		{"a token file that is not there", Config{TokenFile: "/no/such"}, "TokenFile: open /no/such"},
		{"an empty token file", Config{TokenFile: empty}, "holds no token"},
		{"a CA file without certificates", Config{URL: "https://h", CAFile: empty}, "holds no PEM certificate"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := New(test.config)
			require.ErrorContains(t, err, test.want)
			if test.name != "a URL that is none, without its password" {
				assert.NotContains(t, err.Error(), "secret")
			}
		})
	}
}

func TestTokenIsReadAgainForEveryAttempt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("first\n")
	var got []string
	s, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		reply(200, nil)(w, r)
	})
	config := quick(s.URL)
	config.TokenFile = file
	client := newClient(t, config)
	require.NoError(t, client.Healthy(t.Context()))
	write("second")
	require.NoError(t, client.Healthy(t.Context()))
	require.NoError(t, os.Remove(file))
	require.NoError(t, client.Healthy(t.Context()), "the last good token is used while the file is away")
	write("new\nline: x")
	require.NoError(t, client.Healthy(t.Context()), "what is no token never reaches a header")
	assert.Equal(t, []string{"Bearer first", "Bearer second", "Bearer second", "Bearer second"}, got)
}

func TestTLS(t *testing.T) {
	var clients []int
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		clients = append(clients, len(r.TLS.PeerCertificates))
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	caFile, certFile, keyFile := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	stranger, key := selfSigned(t)
	for path, content := range map[string][]byte{caFile: stranger, certFile: stranger, keyFile: key} {
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	config := quick(s.URL)
	config.CAFile, config.CertFile, config.KeyFile = caFile, certFile, keyFile
	client := newClient(t, config)
	err := client.Healthy(t.Context())
	require.ErrorContains(t, err, "certificate", "must not trust another CA's server")
	assert.True(t, IsUnavailable(err))
	require.NoError(t, os.WriteFile(caFile, ca, 0o600))
	require.NoError(t, client.Healthy(t.Context()), "the CA may rotate")
	assert.Equal(t, []int{1}, clients, "the client certificate is shown")
}
