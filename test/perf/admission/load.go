package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"tenant.network/tenant-webhook/pkg/admission"
)

// load is what was measured of one handler.
type load struct {
	p50, p99, most time.Duration
	// rps is reviews a second.
	rps float64
}

// run makes each of the calls again and again, side by side with the others, for the time.
func run(duration time.Duration, calls ...func() error) (load, error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   []time.Duration
		errs  []error
		start = time.Now()
	)
	for _, call := range calls {
		wg.Go(func() {
			var mine []time.Duration
			var err error
			for err == nil && time.Since(start) < duration {
				began := time.Now()
				err = call()
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, mine...), append(errs, err)
		})
	}
	wg.Wait()
	took := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return load{}, err
	}
	slices.Sort(all)
	return load{p50: all[len(all)/2], p99: all[len(all)*99/100], most: all[len(all)-1], rps: float64(len(all)) / took.Seconds()}, nil
}

// inProcess calls what serves the handler, without a network, from one goroutine.
func inProcess(handler http.Handler, body []byte, duration time.Duration) (load, error) {
	return run(duration, func() error {
		request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, admission.Path, bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		return checkAllowed(recorder.Body.Bytes())
	})
}

func checkAllowed(answer []byte) error {
	if !bytes.Contains(answer, []byte(`"allowed":true`)) {
		return fmt.Errorf("refused: %s", answer)
	}
	return nil
}

// tlsClients is how many connections the API server of the benchmark keeps.
const tlsClients = 4

// overTLS serves the handler by HTTP/1.1 over TLS, as tenant-webhook does, and posts reviews to it.
func overTLS(handler http.Handler, body []byte, duration time.Duration) (load, error) {
	mux := http.NewServeMux()
	mux.Handle(admission.Path, handler)
	server := httptest.NewUnstartedServer(mux)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	posts := make([]func() error, tlsClients)
	for i := range posts {
		transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		posts[i] = func() error { return post(client, server.URL+admission.Path, body) }
		// The API server keeps its connections: a handshake in each of the short turns would be most of what is measured.
		if err := posts[i](); err != nil {
			return load{}, err
		}
	}
	return run(duration, posts...)
}

func post(client *http.Client, url string, body []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	return checkAllowed(answer)
}
