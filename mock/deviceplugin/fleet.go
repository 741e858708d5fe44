package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// fleet has one plugin for each pool, and registers all anew when the kubelet was restarted: it forgets its plugins then,
// and removes their sockets.
type fleet struct {
	dir     string
	state   *state
	running map[string]*plugin
}

// run serves until the context ends.
func (f *fleet) run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close() //nolint:errcheck // only read from
	if err := watcher.Add(f.dir); err != nil {
		return fmt.Errorf("-dir %q: %w", f.dir, err)
	}
	f.running = map[string]*plugin{}
	defer f.stopAll()

	backoff := minBackoff
	for {
		_, changed := f.state.all()
		var retry <-chan time.Time
		if err := f.reconcile(ctx); err != nil {
			slog.WarnContext(ctx, "will try again", "after", backoff, "err", err)
			retry = time.After(backoff)
			backoff = min(2*backoff, maxBackoff)
		} else {
			backoff = minBackoff
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry:
		case event := <-watcher.Events:
			if filepath.Base(event.Name) == kubeletSocket && event.Has(fsnotify.Create) {
				slog.InfoContext(ctx, "the kubelet is there anew")
				f.stopAll()
			}
		case err := <-watcher.Errors:
			return err
		}
	}
}

// reconcile starts plugins of new pools and stops those of pools that are gone.
func (f *fleet) reconcile(ctx context.Context) error {
	pools, _ := f.state.all()
	wanted := map[string]bool{}
	for _, p := range pools {
		wanted[p.Name] = true
	}
	for name, p := range f.running {
		if !wanted[name] {
			p.stop()
			delete(f.running, name)
		}
	}
	if _, err := os.Stat(filepath.Join(f.dir, kubeletSocket)); errors.Is(err, os.ErrNotExist) {
		return nil // its appearance wakes us
	}
	var errs []error
	for name := range wanted {
		if f.running[name] != nil {
			continue
		}
		p, err := startPlugin(ctx, f.dir, name, f.state)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.running[name] = p
	}
	return errors.Join(errs...)
}

func (f *fleet) stopAll() {
	for _, p := range f.running {
		p.stop()
	}
	clear(f.running)
}
