package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAStoppingReplicaServesOnAndClosesConnections(t *testing.T) {
	d := &drain{delay: time.Hour}
	server := httptest.NewServer(d.closing(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })))
	defer server.Close()
	closes := func() bool {
		response, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusTeapot, response.StatusCode)
		return response.Close
	}
	signals, signal := context.WithCancel(t.Context())
	running, stop := d.until(signals)
	require.NoError(t, d.ready(nil))
	require.False(t, closes())

	signal()
	require.Eventually(t, func() bool { return d.ready(nil) != nil }, time.Minute, time.Millisecond)
	require.True(t, closes())
	require.NoError(t, running.Err(), "it serves on during the delay")
	stop()
	<-running.Done()
}

func TestTheDelayOfTheShutdownEnds(t *testing.T) {
	d := &drain{delay: time.Millisecond}
	signals, signal := context.WithCancel(t.Context())
	running, stop := d.until(signals)
	defer stop()
	require.NoError(t, running.Err())
	signal()
	<-running.Done()
	require.ErrorIs(t, d.ready(nil), errStopping)
}
