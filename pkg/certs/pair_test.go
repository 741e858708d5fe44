package certs

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestParsePairMustNotTake(t *testing.T) {
	ca := newTestCA(t)
	without := func(key string) map[string][]byte {
		data := ca.secret(nil)
		delete(data, key)
		return data
	}
	with := func(key, text string) map[string][]byte {
		data := ca.secret(nil)
		data[key] = []byte(text)
		return data
	}
	for name, tc := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"an empty Secret":                         {nil, "keys tls.crt and tls.key must hold"},
		"no certificate":                          {without(corev1.TLSCertKey), "keys tls.crt and tls.key must hold"},
		"no private key":                          {without(corev1.TLSPrivateKeyKey), "keys tls.crt and tls.key must hold"},
		"a certificate that is garbage":           {with(corev1.TLSCertKey, "garbage"), "failed to find any PEM data in certificate input"},
		"a private key that is garbage":           {with(corev1.TLSPrivateKeyKey, "garbage"), "failed to find any PEM data in key input"},
		"the private key of another one":          {with(corev1.TLSPrivateKeyKey, string(ca.secret(nil)[corev1.TLSPrivateKeyKey])), "private key does not match public key"},
		"a certificate for another name":          {ca.secret(func(c *x509.Certificate) { c.DNSNames = []string{"other.svc"} }), "valid for other.svc, not " + testName},
		"a certificate that is only for clients":  {ca.secret(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), "not for serving"},
		"a certificate that has expired":          {ca.secret(func(c *x509.Certificate) { c.NotAfter = testNow.Add(-time.Second) }), "valid from 2030-01-02T02:04:05Z to 2030-01-02T03:04:04Z"},
		"a certificate of the day after tomorrow": {ca.secret(func(c *x509.Certificate) { c.NotBefore = testNow.Add(48 * time.Hour) }), "valid from 2030-01-04T03:04:05Z"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parsePair(tc.data, testName, testNow)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestParsePairTakes(t *testing.T) {
	ca := newTestCA(t)
	for name, change := range map[string]func(*x509.Certificate){
		"what a CA makes for us":          nil,
		"a certificate without usages":    func(c *x509.Certificate) { c.ExtKeyUsage = nil },
		"a certificate for more names":    func(c *x509.Certificate) { c.DNSNames = []string{"other.svc", testName} },
		"a certificate for any usage":     func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} },
		"one that expires in this second": func(c *x509.Certificate) { c.NotAfter = testNow },
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := parsePair(ca.secret(change), testName, testNow)
			require.NoError(t, err)
			require.NotNil(t, pair.Leaf)
		})
	}
}

func TestBundle(t *testing.T) {
	a, b := newTestCA(t), newTestCA(t)
	text := append(append(append([]byte("# a comment\n"), a.pem()...), b.pem()...), a.pem()...)
	text = append(text, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\nrubbish"...)
	all := parseBundle(text)
	require.Equal(t, bundle{a.cert, b.cert}, all, "each once, and nothing that is no certificate")
	require.Equal(t, all, parseBundle(all.encode()))
	require.Empty(t, parseBundle(nil))

	pair := a.pair()
	assert.True(t, all.trusts(pair, testName, testNow))
	assert.False(t, bundle{b.cert}.trusts(pair, testName, testNow), "another CA of the same name")
	assert.False(t, bundle{}.trusts(pair, testName, testNow))
	assert.False(t, all.trusts(pair, "other.svc", testNow))
	assert.False(t, all.trusts(pair, testName, testNow.Add(366*24*time.Hour)))
}
