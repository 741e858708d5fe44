package certs

import (
	"crypto/x509"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestRenew(t *testing.T) {
	i := newIssuer(testName)
	fresh, err := i.renew(nil, i.missing(nil, nil, testNow), testNow)
	require.NoError(t, err)
	change := func(pairs ...string) map[string][]byte {
		data := maps.Clone(fresh)
		for n := 0; n < len(pairs); n += 2 {
			if pairs[n+1] == "" {
				delete(data, pairs[n])
			} else {
				data[pairs[n]] = []byte(pairs[n+1])
			}
		}
		return data
	}
	theirs := newTestCA(t)
	foreign := theirs.secret(nil)
	foreignUnnamed := maps.Clone(foreign)
	delete(foreignUnnamed, caCertKey)
	for _, tc := range []struct {
		name    string
		data    map[string][]byte
		trusted bundle
		at      time.Duration
		want    renewal
	}{
		{name: "nothing is there", want: renewAuthority},
		{name: "what was made last must not be made again", data: fresh, want: renewNothing},
		{name: "not before the lookahead", data: fresh, at: serverLifetime - lookahead - time.Minute, want: renewNothing},
		{name: "the certificate comes to its end", data: fresh, at: serverLifetime - lookahead + time.Minute, want: renewServer},
		{name: "the CA comes to its end", data: fresh, at: caLifetime - lookahead + time.Minute, want: renewAuthority},
		{name: "the certificate was removed", data: change("tls.crt", ""), want: renewServer},
		{name: "the certificate is garbage", data: change("tls.crt", "garbage"), want: renewServer},
		{name: "the private key is garbage", data: change("tls.key", "garbage"), want: renewServer},
		{name: "the CA's key is garbage, which matters when it is needed", data: change("ca.key", "garbage"), want: renewNothing},
		{name: "the CA's key is garbage when it is needed", data: change("ca.key", "garbage", "tls.crt", ""), want: renewAuthority},
		{name: "the CA's key is that of another CA", data: change("ca.crt", string(theirs.pem()), "tls.crt", ""), want: renewAuthority},
		{name: "the CA is garbage and nobody trusts it", data: change("ca.crt", "garbage"), want: renewAuthority},
		{name: "the CA is garbage, but clients trust it", data: change("ca.crt", "garbage"), trusted: parseBundle(fresh[caCertKey]), want: renewNothing},
		{name: "somebody else's certificate that works must not be replaced", data: foreign, want: renewNothing},
		{name: "somebody else's certificate whose CA only the caBundle names must not be replaced", data: foreignUnnamed, trusted: bundle{theirs.cert}, want: renewNothing},
		{name: "somebody else's certificate that nobody trusts", data: foreignUnnamed, want: renewAuthority},
		{name: "somebody else's certificate that comes to its end", data: foreign, at: 365*24*time.Hour - lookahead + time.Minute, want: renewAuthority},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := testNow.Add(tc.at)
			require.Equal(t, tc.want.String(), i.missing(tc.data, tc.trusted, now).String())
			before := maps.Clone(tc.data)
			got, err := i.renew(tc.data, tc.want, now)
			require.NoError(t, err)
			require.Equal(t, before, tc.data, "what was given must not be changed")
			if tc.want == renewNothing {
				require.Equal(t, tc.data, got)
				return
			}
			require.Equal(t, renewNothing, i.missing(got, nil, now), "once is enough")
			pair, err := parsePair(got, testName, now)
			require.NoError(t, err)
			require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, pair.Leaf.ExtKeyUsage)
			require.Equal(t, tc.want == renewServer, string(got[caCertKey]) == string(fresh[caCertKey]), "the CA changes only when it must")
			require.NotEqual(t, fresh[corev1.TLSCertKey], got[corev1.TLSCertKey])
		})
	}
	t.Run("other keys of the Secret stay", func(t *testing.T) {
		got, err := i.renew(map[string][]byte{"note": []byte("x")}, renewAuthority, testNow)
		require.NoError(t, err)
		require.Equal(t, "x", string(got["note"]))
	})
	t.Run("a serving certificate without a CA is an error", func(t *testing.T) {
		_, err := i.renew(nil, renewServer, testNow)
		require.ErrorContains(t, err, "key ca.crt must hold a certificate")
	})
}
