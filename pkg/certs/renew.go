package certs

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
)

const (
	caLifetime     = 10 * 365 * 24 * time.Hour
	serverLifetime = 365 * 24 * time.Hour
	// lookahead is how long before its end a certificate is renewed.
	lookahead = 90 * 24 * time.Hour
	// backdate allows for clocks of API servers that are behind ours.
	backdate = time.Hour
	caName   = "tenant-webhook-ca"
)

// renewal is what a Secret's data lacks.
type renewal int

const (
	renewNothing renewal = iota
	renewServer
	renewAuthority // and with it the serving certificate
)

func (r renewal) String() string {
	return map[renewal]string{renewNothing: "nothing", renewServer: "serving certificate", renewAuthority: "CA and serving certificate"}[r]
}

// issuer makes certificates for one DNS name.
type issuer struct {
	rotator rotator.CertRotator
}

func newIssuer(dnsName string) *issuer {
	return &issuer{rotator: rotator.CertRotator{DNSName: dnsName, CAName: caName, CAOrganization: "tenant-webhook",
		ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}}
}

// missing says what must be renewed. A certificate that works is left alone whoever made it. Trusted is what the webhook's
// clients trust besides the Secret's own CAs.
func (i *issuer) missing(data map[string][]byte, trusted bundle, now time.Time) renewal {
	pair, err := parsePair(data, i.rotator.DNSName, now)
	if err == nil && append(parseBundle(data[caCertKey]), trusted...).trusts(pair, i.rotator.DNSName, now.Add(lookahead)) {
		return renewNothing
	}
	if authority, err := parseAuthority(data); err == nil && valid(authority, now.Add(lookahead)) {
		return renewServer
	}
	return renewAuthority
}

func valid(ca *rotator.KeyPairArtifacts, at time.Time) bool {
	ok, err := rotator.ValidCert(ca.CertPEM, ca.CertPEM, ca.KeyPEM, "", nil, at)
	return ok && err == nil
}

// renew returns the Secret's data with what is missing made anew; nothing of what was given is changed.
func (i *issuer) renew(data map[string][]byte, what renewal, now time.Time) (map[string][]byte, error) {
	if what == renewNothing {
		return data, nil
	}
	begin := now.Add(-backdate)
	authority, err := parseAuthority(data)
	if what == renewAuthority {
		authority, err = i.rotator.CreateCACert(begin, now.Add(caLifetime))
	}
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	cert, key, err := i.rotator.CreateCertPEM(authority, begin, now.Add(serverLifetime))
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	renewed := maps.Clone(data)
	if renewed == nil {
		renewed = map[string][]byte{}
	}
	renewed[corev1.TLSCertKey], renewed[corev1.TLSPrivateKeyKey] = cert, key
	renewed[caCertKey], renewed[caPrivateKey] = authority.CertPEM, authority.KeyPEM
	return renewed, nil
}

// parseAuthority reads the CA with its private key from a Secret's data.
func parseAuthority(data map[string][]byte) (*rotator.KeyPairArtifacts, error) {
	all := parseBundle(data[caCertKey])
	if len(all) == 0 {
		return nil, fmt.Errorf("key %s must hold a certificate in PEM", caCertKey)
	}
	block, _ := pem.Decode(data[caPrivateKey])
	if block == nil {
		return nil, fmt.Errorf("key %s must hold a private key in PEM", caPrivateKey)
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", caPrivateKey, err)
	}
	public, ok := all[0].PublicKey.(*rsa.PublicKey)
	if !ok || !public.Equal(key.Public()) {
		return nil, fmt.Errorf("key %s is not that of the certificate in %s", caPrivateKey, caCertKey)
	}
	return &rotator.KeyPairArtifacts{Cert: all[0], Key: key, CertPEM: bundle{all[0]}.encode(), KeyPEM: data[caPrivateKey]}, nil
}
