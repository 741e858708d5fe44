// Package poolconfig keeps the pool configuration current: it watches one ConfigMap by name and holds the last one that
// could be read.
package poolconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"tenant.network/tenant-webhook/pkg/pools"
)

// Where the configuration stands unless told otherwise.
const (
	DefaultNamespace = "webhook-system"
	DefaultName      = "resource-pool-config"
)

// reasonInvalid is the reason of the Event on a ConfigMap that cannot be read.
const reasonInvalid = "InvalidPoolConfig"

// loadTimeout bounds the first read.
const loadTimeout = 10 * time.Second

// Recorder is the part of an event recorder that a Watcher needs.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Watcher holds the current pool configuration. A ConfigMap that cannot be read, or is deleted, leaves the last good
// one in force, and raises an Event and a metric.
type Watcher struct {
	client          kubernetes.Interface
	namespace, name string
	recorder        Recorder
	current         atomic.Pointer[pools.Config]
	data            map[string]string
	onChange        []func(*pools.Config)
	rejected        prometheus.Counter
	loaded          prometheus.Gauge
}

// Config says what a Watcher watches.
type Config struct {
	Client kubernetes.Interface
	// Namespace and Name default to DefaultNamespace and DefaultName.
	Namespace, Name string
	// Recorder may be nil.
	Recorder Recorder
	// Registerer gets the metrics; it may be nil.
	Registerer prometheus.Registerer
}

// New reads the ConfigMap for the first time. That it is missing or wrong is an error: a program without any pools
// must not look healthy.
func New(ctx context.Context, cfg Config) (*Watcher, error) {
	w := &Watcher{client: cfg.Client, namespace: cfg.Namespace, name: cfg.Name, recorder: cfg.Recorder}
	var err error
	if w.rejected, err = register(cfg.Registerer, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rdma_pool_config_rejected_total",
		Help: "Number of edits of the pool configuration that could not be used; the last good one stays in force.",
	})); err != nil {
		return nil, err
	}
	if w.loaded, err = register(cfg.Registerer, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "rdma_pool_config_valid",
		Help: "1 while the pool configuration in force is the one in the ConfigMap, 0 while an older one is.",
	})); err != nil {
		return nil, err
	}
	if w.namespace == "" {
		w.namespace = DefaultNamespace
	}
	if w.name == "" {
		w.name = DefaultName
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	object, err := w.client.CoreV1().ConfigMaps(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the pool configuration: %w", err)
	}
	parsed, err := pools.ParseConfig(object.Data)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w", w.namespace, w.name, err)
	}
	w.current.Store(parsed)
	w.data = object.Data
	w.loaded.Set(1)
	return w, nil
}

// register shares a metric that is registered already: a scheduler makes one Watcher a profile.
func register[T prometheus.Collector](registerer prometheus.Registerer, collector T) (T, error) {
	if registerer == nil {
		return collector, nil
	}
	err := registerer.Register(collector)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(T); ok {
			return existing, nil
		}
	}
	if err != nil {
		return collector, fmt.Errorf("registering metrics of the pool configuration: %w", err)
	}
	return collector, nil
}

// Current returns the configuration in force. It is never nil and must not be changed.
func (w *Watcher) Current() *pools.Config { return w.current.Load() }

// OnChange adds a function that is called, one at a time, after each change. It must be called before Start.
func (w *Watcher) OnChange(f func(*pools.Config)) { w.onChange = append(w.onChange, f) }

// Start watches until ctx ends.
func (w *Watcher) Start(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithNamespace(w.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, w.name).String()
		}))
	informer := factory.Core().V1().ConfigMaps().Informer()
	logger := klog.FromContext(ctx)
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { w.apply(logger, object) },
		UpdateFunc: func(_, object any) { w.apply(logger, object) },
		DeleteFunc: func(any) {
			w.loaded.Set(0)
			logger.Error(nil, "pool configuration was deleted; the last good one stays in force", "configMap", klog.KRef(w.namespace, w.name))
		},
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// NeedLeaderElection tells controller-runtime that every replica watches.
func (w *Watcher) NeedLeaderElection() bool { return false }

// maxNote keeps an Event's note within the 1024 bytes that the API server takes (core/validation, NoteLengthLimit): a
// longer one is no Event at all.
const maxNote = 900

func note(err error) string {
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), maxNote)], "")
}

// apply takes over a version of the ConfigMap. The informer calls it from one goroutine.
func (w *Watcher) apply(logger klog.Logger, object any) {
	configMap, ok := object.(*corev1.ConfigMap)
	if !ok {
		return
	}
	parsed, err := pools.ParseConfig(configMap.Data)
	if err != nil {
		w.rejected.Inc()
		w.loaded.Set(0)
		logger.Error(err, "pool configuration cannot be used; the last good one stays in force", "configMap", klog.KObj(configMap))
		if w.recorder != nil {
			w.recorder.Eventf(configMap, nil, corev1.EventTypeWarning, reasonInvalid, "Load",
				"%s. The last good configuration stays in force.", note(err))
		}
		return
	}
	w.loaded.Set(1)
	if maps.Equal(w.data, configMap.Data) {
		return
	}
	w.data = configMap.Data
	w.current.Store(parsed)
	logger.Info("pool configuration changed", "configMap", klog.KObj(configMap), "pools", len(parsed.Pools))
	for _, f := range w.onChange {
		f(parsed)
	}
}
