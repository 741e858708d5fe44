package poolconfig

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"tenant.network/tenant-webhook/pkg/pools"
)

const (
	within = 20 * time.Second
	often  = 5 * time.Millisecond
)

// recorder keeps the Events.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(regarding, _ runtime.Object, eventtype, reason, action, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := "?"
	if configMap, ok := regarding.(*corev1.ConfigMap); ok {
		name = configMap.Namespace + "/" + configMap.Name
	}
	r.events = append(r.events, fmt.Sprintf("%s %s %s %s: %s", name, eventtype, reason, action, fmt.Sprintf(note, args...)))
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.events...)
}

func configMap(lines string, policy ...string) *corev1.ConfigMap {
	data := map[string]string{pools.PoolsKey: lines}
	if len(policy) > 0 {
		data[pools.PolicyKey] = policy[0]
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: DefaultName}, Data: data}
}

// fixture is a running Watcher.
type fixture struct {
	t        *testing.T
	client   *fake.Clientset
	registry *prometheus.Registry
	recorder *recorder
	watcher  *Watcher
	mu       sync.Mutex
	changes  []string
}

func start(t *testing.T, object *corev1.ConfigMap) *fixture {
	t.Helper()
	f := &fixture{t: t, client: fake.NewClientset(object), registry: prometheus.NewRegistry(), recorder: &recorder{}}
	watching := make(chan struct{}, 16)
	f.client.PrependWatchReactor("configmaps", func(action k8stesting.Action) (bool, watch.Interface, error) {
		w, err := f.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		watching <- struct{}{}
		return true, w, err
	})
	var err error
	f.watcher, err = New(t.Context(), Config{Client: f.client, Recorder: f.recorder, Registerer: f.registry})
	require.NoError(t, err)
	f.watcher.OnChange(func(cfg *pools.Config) {
		f.mu.Lock()
		defer f.mu.Unlock()
		assert.Same(t, cfg, f.watcher.Current(), "the new configuration is in force when others hear of it")
		f.changes = append(f.changes, names(cfg))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.watcher.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-watching // what changes before the fake clientset's watch is lost
	return f
}

func names(cfg *pools.Config) string {
	var all []string
	for _, pool := range cfg.Pools {
		all = append(all, string(pool.Name))
	}
	return strings.Join(all, " ")
}

func (f *fixture) edit(object *corev1.ConfigMap) {
	f.t.Helper()
	_, err := f.client.CoreV1().ConfigMaps(DefaultNamespace).Update(f.t.Context(), object, metav1.UpdateOptions{})
	require.NoError(f.t, err)
}

func (f *fixture) eventually(condition func() bool) {
	f.t.Helper()
	require.Eventually(f.t, condition, within, often)
}

func (f *fixture) heard() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.changes...)
}

func (f *fixture) metrics(rejected, valid int) {
	f.t.Helper()
	require.NoError(f.t, testutil.GatherAndCompare(f.registry, strings.NewReader(fmt.Sprintf(`
# HELP rdma_pool_config_rejected_total Number of edits of the pool configuration that could not be used; the last good one stays in force.
# TYPE rdma_pool_config_rejected_total counter
rdma_pool_config_rejected_total %d
# HELP rdma_pool_config_valid 1 while the pool configuration in force is the one in the ConfigMap, 0 while an older one is.
# TYPE rdma_pool_config_valid gauge
rdma_pool_config_valid %d
`, rejected, valid))))
}

func TestNewMustNotStartWithoutPools(t *testing.T) {
	for _, tc := range []struct {
		name   string
		object *corev1.ConfigMap
		want   []string
	}{
		{"a wrong line", configMap("a.com/b\nhca_shared_devices_a"), []string{"ConfigMap webhook-system/resource-pool-config", `key "resource-pools"`, "line 2", `"hca_shared_devices_a"`}},
		{"a wrong policy", configMap("a.com/b", "whenful: queue"), []string{"ConfigMap webhook-system/resource-pool-config", `key "policy"`, `"whenful"`}},
		{"an empty ConfigMap", &corev1.ConfigMap{ObjectMeta: configMap("").ObjectMeta}, []string{`key "resource-pools" is missing`}},
		{"another ConfigMap", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: "other"}, Data: configMap("a.com/b").Data},
			[]string{"reading the pool configuration", `"resource-pool-config" not found`}},
		{"a ConfigMap of another namespace", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: DefaultName}, Data: configMap("a.com/b").Data},
			[]string{"reading the pool configuration", "not found"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			watcher, err := New(t.Context(), Config{Client: fake.NewClientset(tc.object)})
			require.Nil(t, watcher)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestNewReadsWhatItIsTold(t *testing.T) {
	object := configMap("a.com/b", "maxCount: 3")
	object.Namespace, object.Name = "ns", "name"
	watcher, err := New(t.Context(), Config{Client: fake.NewClientset(object), Namespace: "ns", Name: "name"})
	require.NoError(t, err)
	assert.Equal(t, int64(3), watcher.Current().Policy.MaxCount)
	assert.False(t, watcher.NeedLeaderElection(), "every replica needs the pools")
}

func TestAGoodEditIsAppliedAndToldOnce(t *testing.T) {
	f := start(t, configMap("a.com/b"))
	f.metrics(0, 1)
	f.edit(configMap("c.com/d\na.com/b"))
	f.eventually(func() bool { return len(f.heard()) == 1 })
	assert.Equal(t, "c.com/d a.com/b", names(f.watcher.Current()))

	labelled := configMap("c.com/d\na.com/b")
	labelled.Labels = map[string]string{"x": "y"}
	f.edit(labelled) // changes nothing that matters
	f.edit(configMap("e.com/f", "maxCount: 2"))
	f.eventually(func() bool { return names(f.watcher.Current()) == "e.com/f" })
	f.eventually(func() bool { return len(f.heard()) == 2 })
	assert.Equal(t, []string{"c.com/d a.com/b", "e.com/f"}, f.heard())
	assert.Equal(t, int64(2), f.watcher.Current().Policy.MaxCount)
	assert.Empty(t, f.recorder.all())
	f.metrics(0, 1)
}

func TestABadEditMustNotTakeTheLastGoodOneAway(t *testing.T) {
	f := start(t, configMap("a.com/b"))
	before := f.watcher.Current()
	f.edit(configMap("a.com/b\n\nno-domain"))
	f.eventually(func() bool { return len(f.recorder.all()) == 1 })
	assert.Same(t, before, f.watcher.Current())
	assert.Equal(t, []string{`webhook-system/resource-pool-config Warning InvalidPoolConfig Load: key "resource-pools" line 3: "no-domain" is not an extended resource; ` +
		`it must be domain/name outside kubernetes.io, such as mellanox.com/mlnx_sriov_rdma. The last good configuration stays in force.`}, f.recorder.all())
	f.metrics(1, 0)

	f.edit(configMap("a.com/b", "maxCount: 0x")) // still bad, in another way
	f.eventually(func() bool { return len(f.recorder.all()) == 2 })
	f.metrics(2, 0)
	assert.Same(t, before, f.watcher.Current())

	f.edit(configMap("a.com/b")) // as it was
	f.eventually(func() bool { return testutil.ToFloat64(f.watcher.loaded) == 1 })
	assert.Same(t, before, f.watcher.Current())
	assert.Empty(t, f.heard(), "what did not change must not be told")
	f.metrics(2, 1)
}

func TestAnEventMustFitTheAPI(t *testing.T) {
	for name, text := range map[string]string{"letters": strings.Repeat("x", 100<<10), "runes": strings.Repeat("€", 50<<10)} {
		t.Run(name, func(t *testing.T) {
			f := start(t, configMap("a.com/b"))
			f.edit(configMap(text))
			f.eventually(func() bool { return len(f.recorder.all()) == 1 })
			_, note, _ := strings.Cut(f.recorder.all()[0], " Load: ")
			assert.LessOrEqual(t, len(note), 1024)
			assert.True(t, utf8.ValidString(note))
			assert.Contains(t, note, `key "resource-pools" line 1`)
			assert.Contains(t, note, "The last good configuration stays in force.")
		})
	}
}

func TestADeletionMustNotTakeTheLastGoodOneAway(t *testing.T) {
	f := start(t, configMap("a.com/b"))
	before := f.watcher.Current()
	require.NoError(t, f.client.CoreV1().ConfigMaps(DefaultNamespace).Delete(t.Context(), DefaultName, metav1.DeleteOptions{}))
	f.eventually(func() bool { return testutil.ToFloat64(f.watcher.loaded) == 0 })
	assert.Same(t, before, f.watcher.Current())

	_, err := f.client.CoreV1().ConfigMaps(DefaultNamespace).Create(t.Context(), configMap("c.com/d"), metav1.CreateOptions{})
	require.NoError(t, err)
	f.eventually(func() bool { return len(f.heard()) == 1 })
	assert.Equal(t, "c.com/d", names(f.watcher.Current()))
	f.metrics(0, 1)
}

func TestTwoWatchersShareOneRegistry(t *testing.T) {
	registry := prometheus.NewRegistry()
	client := fake.NewClientset(configMap("a.com/b"))
	one, err := New(t.Context(), Config{Client: client, Registerer: registry})
	require.NoError(t, err)
	two, err := New(t.Context(), Config{Client: client, Registerer: registry})
	require.NoError(t, err)
	one.rejected.Inc()
	two.rejected.Inc()
	assert.InDelta(t, 2, testutil.ToFloat64(one.rejected), 0)
	count, err := testutil.GatherAndCount(registry)
	require.NoError(t, err)
	assert.Equal(t, 2, count)

	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "rdma_pool_config_rejected_total", Help: "another one"}))
	_, err = New(t.Context(), Config{Client: client, Registerer: other})
	require.ErrorContains(t, err, "registering metrics of the pool configuration")
}
