package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"
)

// bundle is a list of CA certificates, as ca.crt and caBundle carry them.
type bundle []*x509.Certificate

// parseBundle reads the certificates of a PEM text, each once. What is none is passed over: a client does the same.
func parseBundle(text []byte) bundle {
	var b bundle
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return b
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && !b.contains(cert) {
			b = append(b, cert)
		}
	}
}

func (b bundle) encode() []byte {
	var text []byte
	for _, cert := range b {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return text
}

func (b bundle) contains(cert *x509.Certificate) bool {
	return slices.ContainsFunc(b, cert.Equal)
}

// trusts tells whether a client with this bundle takes the pair for dnsName at that time.
func (b bundle) trusts(pair *tls.Certificate, dnsName string, at time.Time) bool {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, cert := range b {
		roots.AddCert(cert)
	}
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(cert)
		}
	}
	_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: dnsName, Roots: roots, Intermediates: intermediates, CurrentTime: at})
	return err == nil
}
