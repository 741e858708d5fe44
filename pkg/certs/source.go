package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// recheck is how soon a certificate that cannot be used is looked at again: it may not be valid yet.
const recheck = time.Minute

var errNotRead = errors.New("the serving certificate has not been read yet")

// Source serves the Secret's certificate from memory.
type Source struct {
	cfg     Config
	chooser chooser // used by Reconcile alone, which does not run concurrently
	// rejected is the version of the Secret that was complained about last.
	rejected string

	serving  atomic.Pointer[tls.Certificate]
	notReady atomic.Pointer[error] // nil once ready, for good

	valid   prometheus.Gauge
	refused prometheus.Counter
	expiry  prometheus.Gauge
}

// NewSource returns a source, to be set up with a manager.
func NewSource(cfg Config) (*Source, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	s := &Source{cfg: cfg, chooser: chooser{dnsName: cfg.dnsName()},
		valid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rdma_webhook_certificate_valid",
			Help: "1 while the certificate in the Secret can be served, 0 while it cannot and an older one is.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rdma_webhook_certificate_rejected_total",
			Help: "Number of versions of the Secret whose certificate could not be served; the last good one stays in use.",
		}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rdma_webhook_certificate_expiry_timestamp_seconds",
			Help: "When the certificate that is served expires, in seconds since 1970.",
		}),
	}
	s.notReady.Store(&errNotRead)
	if cfg.Registerer != nil {
		for _, collector := range []prometheus.Collector{s.valid, s.refused, s.expiry} {
			if err := cfg.Registerer.Register(collector); err != nil {
				return nil, fmt.Errorf("registering metrics of the serving certificate: %w", err)
			}
		}
	}
	return s, nil
}

// SetupWithManager makes every replica watch.
func (s *Source) SetupWithManager(mgr ctrl.Manager) error {
	if s.cfg.Client == nil {
		s.cfg.Client = mgr.GetClient()
	}
	return s.cfg.setup(mgr, "certificate-source", false, s)
}

// GetCertificate is for tls.Config.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := s.serving.Load(); pair != nil {
		return pair, nil
	}
	return nil, *s.notReady.Load() // ready without a certificate there is not
}

// Ready says why the replica cannot serve yet: it has no certificate, or API servers would not trust it. Later changes
// of the caBundle concern all replicas alike and do not make this one unready.
func (s *Source) Ready(*http.Request) error {
	if reason := s.notReady.Load(); reason != nil {
		return *reason
	}
	return nil
}

// Reconcile implements reconcile.Reconciler for the Secret and the webhook configuration alike.
func (s *Source) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	o, err := s.cfg.read(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := s.cfg.Clock.Now()
	logger := klog.FromContext(ctx)
	candidate, problem := parsePair(o.data(), s.chooser.dnsName, now)
	s.report(logger, o, problem)
	cl := clientsOf(s.cfg.caBundles(o), parseBundle(o.data()[caCertKey]))
	before := s.chooser.serving
	wait := s.chooser.choose(candidate, cl, now)
	if pair := s.chooser.serving; pair != before {
		s.serving.Store(pair)
		s.expiry.Set(float64(pair.Leaf.NotAfter.Unix()))
		logger.Info("serving another certificate", "serial", pair.Leaf.SerialNumber, "issuer", pair.Leaf.Issuer.CommonName, "notAfter", pair.Leaf.NotAfter)
	}
	s.updateReady(cl, problem, now)
	if problem != nil {
		wait = recheck
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// report speaks up about a Secret that cannot be used, once a version.
func (s *Source) report(logger klog.Logger, o objects, problem error) {
	if problem == nil {
		s.valid.Set(1)
		s.rejected = ""
		return
	}
	s.valid.Set(0)
	version := "absent"
	if o.secret != nil {
		version = o.secret.ResourceVersion
	}
	if s.rejected != version {
		s.rejected = version
		s.refused.Inc()
		logger.Error(problem, "the Secret's certificate cannot be served; the last good one stays in use",
			"secret", klog.KRef(s.cfg.Namespace, s.cfg.Secret), "resourceVersion", version)
	}
}

func (s *Source) updateReady(cl clients, problem error, now time.Time) {
	if s.notReady.Load() == nil {
		return
	}
	var reason error
	switch {
	case s.chooser.trusted(cl, now):
		s.notReady.Store(nil)
		return
	case s.chooser.serving == nil:
		reason = fmt.Errorf("no serving certificate: Secret %s/%s: %w", s.cfg.Namespace, s.cfg.Secret, problem)
	default:
		reason = fmt.Errorf("the caBundle of MutatingWebhookConfiguration %s does not trust the serving certificate yet", s.cfg.WebhookConfiguration)
	}
	s.notReady.Store(&reason)
}

// clientsOf is what API servers trust for every webhook of ours. Where neither a caBundle nor the Secret names a CA, API
// servers go by their own roots, which nobody here knows.
func clientsOf(caBundles map[string][]byte, own bundle) clients {
	var cl clients
	empty := true
	first := true
	for _, text := range caBundles {
		empty = empty && len(text) == 0
		b := parseBundle(text)
		if first {
			cl.trusted, first = b, false
			continue
		}
		var both bundle
		for _, cert := range cl.trusted {
			if b.contains(cert) {
				both = append(both, cert)
			}
		}
		cl.trusted = both
	}
	cl.known = len(caBundles) > 0 && (!empty || len(own) > 0)
	return cl
}
