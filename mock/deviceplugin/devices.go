package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxDevices bounds a pool's devices, so that a typing error is an error and no flood.
const maxDevices = 10_000

// pool is what one extended resource is to have: device ids are NAME-0 to NAME-(Devices-1), with the resource name's last
// part as NAME, and the last Unhealthy of them are unhealthy.
type pool struct {
	Name      string `json:"name"`
	Devices   int    `json:"devices"`
	Unhealthy int    `json:"unhealthy,omitempty"`
}

func (p pool) validate() error {
	domain, base, found := strings.Cut(p.Name, "/")
	if !found || domain == "" || base == "" {
		return fmt.Errorf(`name: %q must be an extended resource, such as "example.com/vf"`, p.Name)
	}
	if p.Devices < 0 || p.Devices > maxDevices {
		return fmt.Errorf("devices of %s: %d must be from 0 to %d", p.Name, p.Devices, maxDevices)
	}
	if p.Unhealthy < 0 || p.Unhealthy > p.Devices {
		return fmt.Errorf("unhealthy of %s: %d must be from 0 to its %d devices", p.Name, p.Unhealthy, p.Devices)
	}
	return nil
}

// list is the pool as the kubelet wants to hear it.
func (p pool) list() *pluginapi.ListAndWatchResponse {
	base := p.Name[strings.LastIndexByte(p.Name, '/')+1:]
	devices := make([]*pluginapi.Device, p.Devices)
	for i := range devices {
		health := pluginapi.Healthy
		if i >= p.Devices-p.Unhealthy {
			health = pluginapi.Unhealthy
		}
		devices[i] = &pluginapi.Device{ID: base + "-" + strconv.Itoa(i), Health: health}
	}
	return &pluginapi.ListAndWatchResponse{Devices: devices}
}

// parsePools reads NAME=COUNT items.
func parsePools(items []string) ([]pool, error) {
	pools := make([]pool, len(items))
	for i, item := range items {
		name, count, found := strings.Cut(item, "=")
		devices, err := strconv.Atoi(count)
		if !found || err != nil {
			return nil, fmt.Errorf("-pool: %q must be NAME=COUNT, such as example.com/vf=4", item)
		}
		pools[i] = pool{Name: name, Devices: devices}
	}
	return pools, validatePools(pools)
}

// decodePools reads the body of PUT /pools.
func decodePools(body io.Reader) ([]pool, error) {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	var pools []pool
	if err := decoder.Decode(&pools); err != nil {
		return nil, fmt.Errorf(`the body must be a list such as [{"name":"example.com/vf","devices":4,"unhealthy":1}]: %w`, err)
	}
	if pools == nil {
		return nil, errors.New("the body must be a list; [] takes all pools away")
	}
	return pools, validatePools(pools)
}

func validatePools(pools []pool) error {
	seen := map[string]bool{}
	for _, p := range pools {
		if err := p.validate(); err != nil {
			return err
		}
		if seen[p.Name] {
			return fmt.Errorf("name: %q is there twice", p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

// state is what the pools are now. Who watches it is woken by every change.
type state struct {
	mu      sync.Mutex
	pools   map[string]pool
	watches map[string]int // open ListAndWatch streams by pool; guarded by mu
	changed chan struct{}  // closed and replaced by every change; guarded by mu
}

func newState(pools []pool) *state {
	s := &state{watches: map[string]int{}, changed: make(chan struct{})}
	s.set(pools)
	return s
}

func (s *state) set(pools []pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools = map[string]pool{}
	for _, p := range pools {
		s.pools[p.Name] = p
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// get returns a pool and what is closed when anything changes.
func (s *state) get(name string) (p pool, found bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, found = s.pools[name]
	return p, found, s.changed
}

// all returns the pools by name and what is closed when anything changes.
func (s *state) all() ([]pool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.pools), func(a, b pool) int { return strings.Compare(a.Name, b.Name) }), s.changed
}

// watch counts a stream of a pool until the returned function is called. A new kubelet's may begin before the end of the
// old one's is noticed.
func (s *state) watch(name string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watches[name]--
	}
}

// poolStatus is an item of the answer to GET /pools.
type poolStatus struct {
	pool
	// Watched says that a kubelet listens to what becomes of the pool: one that was started anew does after a while.
	Watched bool `json:"watched"`
}

// status returns the pools by name.
func (s *state) status() []poolStatus {
	pools, _ := s.all()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]poolStatus, len(pools))
	for i, p := range pools {
		all[i] = poolStatus{pool: p, Watched: s.watches[p.Name] > 0}
	}
	return all
}
