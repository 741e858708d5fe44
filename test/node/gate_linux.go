package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"tenant.network/tenant-webhook/internal/devcluster"
)

// bindingGate is a devcluster.Wiretap that can hold the scheduler's bindings: what is between the decision and the
// binding then has time to happen.
type bindingGate struct {
	mu   sync.Mutex
	open chan struct{} // nil: nothing is held; guarded by mu
	held int           // guarded by mu
}

// bindPatiently gives a binding as long as the plugin's arguments may: what happens while one is held takes a kubelet.
func bindPatiently(config map[string]any) error {
	profiles, _ := config["profiles"].([]any)
	patched := false
	for _, p := range profiles {
		profile, _ := p.(map[string]any)
		plugins, _ := profile["pluginConfig"].([]any)
		for _, entry := range plugins {
			plugin, _ := entry.(map[string]any)
			args, ok := plugin["args"].(map[string]any)
			if ok && plugin["name"] == "TenantNetwork" {
				args["bindTimeout"], patched = "1m", true
			}
		}
	}
	if !patched {
		return errors.New("no arguments of TenantNetwork")
	}
	return nil
}

// Before implements devcluster.Wiretap.
func (g *bindingGate) Before(component string, request *http.Request) bool {
	if component != devcluster.TenantScheduler || request.Method != http.MethodPost || !strings.HasSuffix(request.URL.Path, "/binding") {
		return true
	}
	g.mu.Lock()
	open := g.open
	if open != nil {
		g.held++
	}
	g.mu.Unlock()
	if open == nil {
		return true
	}
	select {
	case <-open:
		return true
	case <-request.Context().Done():
		return false
	}
}

// After implements devcluster.Wiretap.
func (g *bindingGate) After(string, *http.Request, int) bool { return true }

// shut holds bindings from now on, until the returned function is called.
func (g *bindingGate) shut() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gate := make(chan struct{})
	g.open, g.held = gate, 0
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.open = nil
		close(gate)
	})
}

// holding says whether a binding is held.
func (g *bindingGate) holding(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == 0 {
		return errors.New("no binding has come yet")
	}
	return nil
}
