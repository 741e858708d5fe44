package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Keys of the Secret beside tls.crt and tls.key. The CA's certificates, the signing one first, and its private key.
const (
	caCertKey    = "ca.crt"
	caPrivateKey = "ca.key"
)

// parsePair reads the serving certificate from a Secret's data. One that no client of dnsName would accept now,
// whatever it trusts, is an error.
func parsePair(data map[string][]byte, dnsName string, now time.Time) (*tls.Certificate, error) {
	cert, key := data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]
	if len(cert) == 0 || len(key) == 0 {
		return nil, fmt.Errorf("keys %s and %s must hold a certificate and its private key in PEM", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("keys %s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	if err := usable(pair.Leaf, dnsName, now); err != nil {
		return nil, fmt.Errorf("key %s: %w", corev1.TLSCertKey, err)
	}
	return &pair, nil
}

func usable(leaf *x509.Certificate, dnsName string, now time.Time) error {
	if err := leaf.VerifyHostname(dnsName); err != nil {
		return err
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fmt.Errorf("the certificate is valid from %s to %s, and now is %s",
			leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	serves := func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageServerAuth || usage == x509.ExtKeyUsageAny
	}
	if len(leaf.ExtKeyUsage) > 0 && !slices.ContainsFunc(leaf.ExtKeyUsage, serves) {
		return errors.New("the certificate is not for serving (extended key usage serverAuth)")
	}
	return nil
}

// same tells whether two pairs are one certificate; nil is none.
func same(a, b *tls.Certificate) bool {
	return a != nil && b != nil && bytes.Equal(a.Leaf.Raw, b.Leaf.Raw)
}
