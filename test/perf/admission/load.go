package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
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

// run calls a function from so many goroutines, one call after the other in each, for the time.
func run(workers int, duration time.Duration, call func() error) (load, error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   []time.Duration
		errs  []error
		start = time.Now()
	)
	for range workers {
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
	return run(1, duration, func() error {
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
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that the client opened and did not need
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	if transport, ok := client.Transport.(*http.Transport); ok {
		transport.MaxIdleConnsPerHost = tlsClients
	}
	post := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+admission.Path, bytes.NewReader(body))
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
	return run(tlsClients, duration, post)
}
