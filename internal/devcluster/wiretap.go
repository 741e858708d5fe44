package devcluster

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
)

// Wiretap sees every request of the project's programs to the API server and to the tenant-controller. Its methods are
// called concurrently and may take their time.
type Wiretap interface {
	// Before is called when a request has arrived, before it is passed on. If it returns false the request is not
	// passed on and the connection is cut.
	Before(component string, request *http.Request) bool
	// After is called when the server has acted and answered, before the program hears of it. If it returns false the
	// program never does.
	After(component string, request *http.Request, status int) bool
}

// taps are the proxies that a Wiretap listens at, by component.
type taps struct {
	mu      sync.Mutex
	servers []*http.Server
}

// through returns where the component should send what is meant for target: to the target itself, or to a proxy.
func (c *Cluster) through(component, target string) (string, error) {
	if c.config.Wiretap == nil {
		return target, nil
	}
	upstream, err := url.Parse(target)
	if err != nil {
		return "", fmt.Errorf("wiretap: %w", err)
	}
	listener, err := net.Listen("tcp", loopback(0))
	if err != nil {
		return "", fmt.Errorf("wiretap: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca.pem)
	transport := &http.Transport{ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	server := &http.Server{Handler: c.tap(component, upstream, transport)} //nolint:gosec // loopback, for tests
	c.taps.mu.Lock()
	c.taps.servers = append(c.taps.servers, server)
	c.taps.mu.Unlock()
	serve := func() error { return server.Serve(listener) }
	if upstream.Scheme == "https" {
		serve = func() error {
			return server.ServeTLS(listener, filepath.Join(c.path("certs"), "tls.crt"), filepath.Join(c.path("certs"), "tls.key"))
		}
	}
	go func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			c.progressf("wiretap of %s ended: %v", component, err)
		}
	}()
	return upstream.Scheme + "://" + listener.Addr().String(), nil
}

func (c *Cluster) tap(component string, upstream *url.URL, transport http.RoundTripper) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ModifyResponse: func(response *http.Response) error {
			if !c.config.Wiretap.After(component, response.Request, response.StatusCode) {
				panic(http.ErrAbortHandler)
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.config.Wiretap.Before(component, r) {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	})
}

func (t *taps) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, server := range t.servers {
		errs = append(errs, server.Close())
	}
	return errors.Join(errs...)
}
