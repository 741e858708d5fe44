package main

import (
	"crypto/tls"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"tenant.network/tenant-webhook/pkg/certs"
)

// serving is how reviews are served: by which certificate, and to the end.
type serving struct {
	drain  *drain
	certs  certs.Config
	rotate bool
	source *certs.Source // nil if the certificate comes from files
}

func newServing(o *options) (*serving, error) {
	s := &serving{drain: &drain{delay: o.stopDelay}, rotate: o.certRotate}
	if o.certDir != "" {
		return s, nil
	}
	s.certs = certs.Config{Namespace: o.podNamespace, Secret: o.certSecret, Service: o.service,
		WebhookConfiguration: o.hookConfig, Registerer: metrics.Registry}
	var err error
	s.source, err = certs.NewSource(s.certs)
	return s, err
}

func (s *serving) configureTLS(c *tls.Config) {
	c.MinVersion = tls.VersionTLS12
	// HTTP/2 lets one client open streams without bound (CVE-2023-44487); the API server does without it.
	c.NextProtos = []string{"http/1.1"}
	if s.source != nil {
		c.GetCertificate = s.source.GetCertificate
	}
}

func (s *serving) addTo(mgr ctrl.Manager) error {
	if err := mgr.AddReadyzCheck("shutdown", s.drain.ready); err != nil {
		return err
	}
	if s.source == nil {
		return nil
	}
	if err := mgr.AddReadyzCheck("certificate", s.source.Ready); err != nil {
		return err
	}
	if err := s.source.SetupWithManager(mgr); err != nil {
		return err
	}
	return certs.NewKeeper(s.certs, s.rotate).SetupWithManager(mgr)
}
