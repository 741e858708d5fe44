package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"tenant.network/tenant-webhook/pkg/admission"
	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/pools/feed"
	"tenant.network/tenant-webhook/pkg/pools/poolconfig"
	"tenant.network/tenant-webhook/pkg/tenant"
	"tenant.network/tenant-webhook/pkg/tenant/release"
	"tenant.network/tenant-webhook/pkg/watchdog"
)

// name is that of the program, of its leader election lease and of the source of its Events.
const name = "tenant-webhook"

// run connects the parts and returns when ctx has ended or a part has failed.
func run(ctx context.Context, o *options) error {
	ctrl.SetLogger(klog.Background())
	klog.FromContext(ctx).Info("tenant-webhook starts", "version", version)
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	// The leader patches one pod for each that ends; a drained node ends hundreds at once.
	config.QPS, config.Burst = 200, 400
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ledger := pools.NewLedger(nil)
	serving, err := newServing(o)
	if err != nil {
		return err
	}
	mgr, err := newManager(config, o, ledger, serving)
	if err != nil {
		return err
	}
	if err := serving.addTo(mgr); err != nil {
		return err
	}
	watcher, err := poolconfig.New(ctx, poolconfig.Config{Client: clients, Namespace: o.podNamespace, Name: o.poolConfig,
		Recorder: mgr.GetEventRecorder(name), Registerer: metrics.Registry})
	if err != nil {
		return err
	}
	if err := addFeed(ctx, mgr, o, ledger, watcher); err != nil {
		return err
	}
	attachments, err := addAdmission(mgr, config, ledger, watcher, serving)
	if err != nil {
		return err
	}
	if err := addWatchdog(mgr, o, attachments); err != nil {
		return err
	}
	if err := addRelease(ctx, mgr, clients, o); err != nil {
		return err
	}
	if err := mgr.Add(watcher); err != nil {
		return err
	}
	running, stop := serving.drain.until(ctx)
	defer stop()
	return mgr.Start(running)
}

func newManager(config *rest.Config, o *options, ledger *pools.Ledger, serving *serving) (ctrl.Manager, error) {
	byObject := map[client.Object]cache.ByObject{
		&corev1.Pod{}:  {Transform: feed.TrimPod},
		&corev1.Node{}: {Transform: feed.TrimNode},
	}
	maps.Copy(byObject, serving.certs.CacheOptions())
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: clientgoscheme.Scheme,
		Cache:  cache.Options{NewInformer: feed.NewInformer, ByObject: byObject},
		Metrics: metricsserver.Options{BindAddress: o.metricsAddr,
			ExtraHandlers: map[string]http.Handler{"/pools": feed.Handler(ledger)}},
		HealthProbeBindAddress: o.healthAddr,
		WebhookServer: webhook.NewServer(webhook.Options{Host: o.webhookHost, Port: o.webhookPort, CertDir: o.certDir,
			TLSOpts: []func(*tls.Config){serving.configureTLS}}),
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              name,
		LeaderElectionNamespace:       o.podNamespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &o.drainFor,
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("webhook", mgr.GetWebhookServer().StartedChecker())
}

// addFeed keeps the ledger current. The program is not ready before the ledger has seen everything: its choices would
// be wrong.
func addFeed(ctx context.Context, mgr ctrl.Manager, o *options, ledger *pools.Ledger, watcher *poolconfig.Watcher) error {
	poolMetrics := feed.NewMetrics(ledger)
	if err := metrics.Registry.Register(poolMetrics); err != nil {
		return fmt.Errorf("registering metrics of the pools: %w", err)
	}
	source, err := feed.New(ctx, feed.Config{Cache: mgr.GetCache(), Ledger: ledger, Pools: watcher.Current,
		Interval: o.refresh, Metrics: poolMetrics})
	if err != nil {
		return err
	}
	watcher.OnChange(func(*pools.Config) {
		if err := source.Reload(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "pods were not read again after a change of the pool configuration")
		}
	})
	if err := mgr.AddReadyzCheck("pools", func(*http.Request) error {
		if !source.Synced() {
			return errors.New("nodes and pods are still being read")
		}
		return nil
	}); err != nil {
		return err
	}
	return mgr.Add(source)
}

func addAdmission(mgr ctrl.Manager, config *rest.Config, ledger *pools.Ledger, watcher *poolconfig.Watcher, serving *serving) (*admission.AttachmentWatcher, error) {
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for NetworkAttachmentDefinitions: %w", err)
	}
	attachments, err := admission.NewAttachmentWatcher(metadataClient)
	if err != nil {
		return nil, err
	}
	injector := &admission.Injector{Ledger: ledger, Pools: watcher.Current, Attachments: attachments.Lookup}
	handler, err := admission.NewHandler(injector, ctrladmission.NewDecoder(mgr.GetScheme()), metrics.Registry)
	if err != nil {
		return nil, err
	}
	mgr.GetWebhookServer().Register(admission.Path, serving.drain.closing(admission.NewServer(handler)))
	if err := mgr.AddReadyzCheck("networks", attachments.Ready); err != nil {
		return nil, err
	}
	return attachments, mgr.Add(attachments)
}

func addWatchdog(mgr ctrl.Manager, o *options, attachments *admission.AttachmentWatcher) error {
	dog, err := watchdog.New(watchdog.Config{Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder(name),
		NetworksAbsent: attachments.Absent, Excluded: []string{metav1.NamespaceSystem, o.podNamespace}, Registerer: metrics.Registry})
	if err != nil {
		return err
	}
	return dog.SetupWithManager(mgr)
}

func addRelease(ctx context.Context, mgr ctrl.Manager, clients kubernetes.Interface, o *options) error {
	api, err := tenant.New(o.tenant)
	if err != nil {
		return err
	}
	releaser, err := tenant.WithMetrics(api, metrics.Registry)
	if err != nil {
		return err
	}
	cluster := o.cluster
	if cluster == "" {
		namespace, err := clients.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("identifying the cluster by the UID of namespace %s: %w", metav1.NamespaceSystem, err)
		}
		cluster = string(namespace.UID)
	}
	controller, err := release.New(release.Config{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Releaser: releaser, Recorder: mgr.GetEventRecorder(name),
		Cluster: cluster, SandboxWait: o.sandboxWait, ForceAfter: o.forceRelease, Registerer: metrics.Registry,
	})
	if err != nil {
		return err
	}
	if err := controller.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	sweeper, err := release.NewSweeper(release.SweepConfig{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Allocations: releaser, Recorder: mgr.GetEventRecorder(name),
		Cluster: cluster, Period: o.sweepPeriod, Grace: o.sweepGrace, UnboundAfter: o.unboundAfter, Confirm: o.sweepConfirm,
		Repair: o.sweepRepair, SandboxWait: o.sandboxWait, ForceAfter: o.forceRelease, Registerer: metrics.Registry,
	})
	if err != nil {
		return err
	}
	return mgr.Add(sweeper)
}
