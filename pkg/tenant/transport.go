package tenant

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// maxTokenBytes bounds a token file; a header of more is refused by most servers.
const maxTokenBytes = 16 << 10

// transport adds the bearer token to each attempt and follows the rotation of the token, of the CA and of the client
// certificate, all of which are projected into the pod and replaced while it runs.
type transport struct {
	tokenFile string
	caFile    string

	mu    sync.Mutex // guards what follows; never held during a round trip
	base  *http.Transport
	ca    []byte // the content of caFile that base trusts
	token string // the last good one
}

func newTransport(config Config) (*transport, error) {
	base := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: config.Timeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   config.Timeout,
		ResponseHeaderTimeout: config.Timeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   16, // as many as kube-scheduler's binding goroutines usually are at once
		ForceAttemptHTTP2:     true,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		// A header is not counted by MaxBodyBytes.
		MaxResponseHeaderBytes: 64 << 10,
	}
	if config.CertFile != "" {
		base.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
			return &pair, err
		}
	}
	t := &transport{tokenFile: config.TokenFile, caFile: config.CAFile, base: base}
	if config.CAFile != "" {
		content, err := readCertPool(config.CAFile)
		if err != nil {
			return nil, err
		}
		t.trust(content)
	}
	return t, nil
}

// RoundTrip implements http.RoundTripper. The request is cloned before it is given a header, as the interface asks.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base, token, err := t.current()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return base.RoundTrip(req)
}

// CloseIdleConnections is found by http.Client by its name.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base.CloseIdleConnections()
}

// current returns the transport and token of this moment. A file that cannot be read just now (a volume being
// swapped) leaves the last good content in use.
func (t *transport) current() (*http.Transport, string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tokenFile != "" {
		token, err := readToken(t.tokenFile)
		if err == nil {
			t.token = token
		} else if t.token == "" {
			return nil, "", err
		}
	}
	if t.caFile != "" {
		if content, err := readCertPool(t.caFile); err == nil && !bytes.Equal(content, t.ca) {
			t.trust(content)
		}
	}
	return t.base, t.token, nil
}

// trust replaces the CA by a copy of the transport: one in use must not be changed.
func (t *transport) trust(content []byte) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(content)
	old := t.base
	t.base = old.Clone()
	t.base.TLSClientConfig.RootCAs = pool
	t.ca = content
	old.CloseIdleConnections()
}

func readToken(path string) (string, error) {
	content, err := readBounded(path, maxTokenBytes)
	if err != nil {
		return "", err
	}
	token := string(bytes.TrimSpace(content))
	if token == "" {
		return "", fmt.Errorf("%q holds no token", path)
	}
	for _, r := range token {
		if r <= ' ' || r > '~' {
			// The token itself is a secret, so it is not quoted.
			return "", fmt.Errorf("%q holds white space or characters that no token has", path)
		}
	}
	return token, nil
}

// readCertPool returns the content of a PEM file with at least one certificate in it.
func readCertPool(path string) ([]byte, error) {
	content, err := readBounded(path, 4<<20)
	if err != nil {
		return nil, err
	}
	if !x509.NewCertPool().AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%q holds no PEM certificate", path)
	}
	return content, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // read only: nothing can be lost
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%q is longer than %d bytes", path, limit)
	}
	return content, nil
}
