// Command deviceplugin is a device plugin without devices, for tests on a real kubelet: it offers any list of extended
// resources, and loses devices or marks them unhealthy when it is told to. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("deviceplugin ends", "err", err)
		os.Exit(1)
	}
}

type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(item string) error {
	*l = append(*l, item)
	return nil
}

// run serves until the context ends.
func run(ctx context.Context, args []string) error {
	var items list
	flags := flag.NewFlagSet("deviceplugin", flag.ContinueOnError)
	dir := flags.String("dir", pluginapi.DevicePluginPath, "the kubelet's directory of device plugin sockets")
	control := flags.String("control", "", "path of a Unix socket to be controlled on; empty: none")
	flags.Var(&items, "pool", "NAME=COUNT, an extended resource and its number of devices; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	pools, err := parsePools(items)
	if err != nil {
		return err
	}
	s := newState(pools)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return (&fleet{dir: *dir, state: s}).run(ctx) })
	if *control != "" {
		group.Go(func() error { return serveControl(ctx, *control, s) })
	}
	return group.Wait()
}

// serveControl answers GET and PUT /pools until the context ends.
func serveControl(ctx context.Context, socket string, s *state) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("-control: %w", err)
	}
	server := &http.Server{Handler: controlHandler(s), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func controlHandler(s *state) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pools", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.status()) // a client may go away
	})
	mux.HandleFunc("PUT /pools", func(w http.ResponseWriter, r *http.Request) {
		pools, err := decodePools(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.set(pools)
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}
