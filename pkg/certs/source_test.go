package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	testNamespace = "webhook-system"
	testSecret    = "tenant-webhook-certs"
	testService   = "tenant-webhook"
)

func secretWith(data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testSecret}, Data: data}
}

// configuration has two webhooks of ours and one that calls somebody else.
func configuration(caBundle []byte) *admissionregistrationv1.MutatingWebhookConfiguration {
	hook := func(name, service string, caBundle []byte) admissionregistrationv1.MutatingWebhook {
		return admissionregistrationv1.MutatingWebhook{Name: name, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: caBundle,
				Service: &admissionregistrationv1.ServiceReference{Namespace: testNamespace, Name: service}}}
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: testService},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			hook("a.tenant.network", testService, caBundle), hook("b.tenant.network", "other", []byte("theirs")), hook("c.tenant.network", testService, caBundle),
		}}
}

// stage is an API server with one replica and the leader.
type stage struct {
	t        *testing.T
	client   client.Client
	clock    *clocktesting.FakePassiveClock
	registry *prometheus.Registry
	source   *Source
	keeper   *Keeper
	// onPatch may answer a patch instead of the API server.
	onPatch func() error
}

func newStage(t *testing.T, rotate bool, objects ...client.Object) *stage {
	t.Helper()
	s := &stage{t: t, clock: clocktesting.NewFakePassiveClock(testNow), registry: prometheus.NewRegistry()}
	s.client = interceptor.NewClient(fake.NewClientBuilder().WithObjects(objects...).Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if s.onPatch != nil {
				if err := s.onPatch(); err != nil {
					return err
				}
			}
			return c.Patch(ctx, object, patch, opts...)
		}})
	cfg := Config{Client: s.client, Namespace: testNamespace, Secret: testSecret, Service: testService,
		WebhookConfiguration: testService, Clock: s.clock, Registerer: s.registry}
	var err error
	s.source, err = NewSource(cfg)
	require.NoError(t, err)
	s.keeper = NewKeeper(cfg, rotate)
	return s
}

func (s *stage) keep() time.Duration {
	s.t.Helper()
	result, err := s.keeper.Reconcile(s.t.Context(), reconcile.Request{})
	require.NoError(s.t, err)
	return result.RequeueAfter
}

func (s *stage) look() time.Duration {
	s.t.Helper()
	result, err := s.source.Reconcile(s.t.Context(), reconcile.Request{})
	require.NoError(s.t, err)
	return result.RequeueAfter
}

func (s *stage) served() *tls.Certificate {
	s.t.Helper()
	pair, err := s.source.GetCertificate(nil)
	require.NoError(s.t, err)
	return pair
}

func (s *stage) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

func (s *stage) secret() map[string][]byte {
	s.t.Helper()
	secret := &corev1.Secret{}
	require.NoError(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: testSecret}, secret))
	return secret.Data
}

func (s *stage) setSecret(data map[string][]byte) {
	s.t.Helper()
	secret := &corev1.Secret{}
	require.NoError(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: testSecret}, secret))
	secret.Data = data
	require.NoError(s.t, s.client.Update(s.t.Context(), secret))
}

// caBundle is what both webhooks of ours hold.
func (s *stage) caBundle() bundle {
	s.t.Helper()
	object := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(s.t, s.client.Get(s.t.Context(), client.ObjectKey{Name: testService}, object))
	require.Len(s.t, object.Webhooks, 3)
	require.Equal(s.t, object.Webhooks[0].ClientConfig.CABundle, object.Webhooks[2].ClientConfig.CABundle)
	require.Equal(s.t, "theirs", string(object.Webhooks[1].ClientConfig.CABundle), "somebody else's webhook must not be touched")
	for _, hook := range object.Webhooks {
		require.NotNil(s.t, hook.ClientConfig.Service)
		require.Equal(s.t, []string{"v1"}, hook.AdmissionReviewVersions)
	}
	return parseBundle(object.Webhooks[0].ClientConfig.CABundle)
}

func (s *stage) metric(name string) float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	require.NoError(s.t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue() + family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	s.t.Fatalf("no metric %s", name)
	return 0
}

func TestAFreshInstallationGetsReady(t *testing.T) {
	s := newStage(t, true, secretWith(nil), configuration(nil))
	require.ErrorIs(t, s.source.Ready(nil), errNotRead)
	_, err := s.source.GetCertificate(nil)
	require.ErrorIs(t, err, errNotRead)
	s.look()
	require.EqualError(t, s.source.Ready(nil), "no serving certificate: Secret webhook-system/tenant-webhook-certs: keys tls.crt and tls.key must hold a certificate and its private key in PEM")

	s.keep()
	s.look()
	require.True(t, s.source.cfg.dnsName() == testName && s.served().Leaf.VerifyHostname(testName) == nil)
	require.EqualError(t, s.source.Ready(nil), "the caBundle of MutatingWebhookConfiguration tenant-webhook does not trust the serving certificate yet")

	require.Equal(t, checkPeriod, s.keep())
	require.Zero(t, s.look())
	require.NoError(t, s.source.Ready(nil))
	require.True(t, s.caBundle().trusts(s.served(), testName, testNow))
	require.Len(t, s.caBundle(), 1)
	require.InDelta(t, 1, s.metric("rdma_webhook_certificate_valid"), 0)
	require.InDelta(t, s.served().Leaf.NotAfter.Unix(), s.metric("rdma_webhook_certificate_expiry_timestamp_seconds"), 0)

	t.Run("and nothing is written again", func(t *testing.T) {
		s.onPatch = func() error { return errors.New("a write") }
		require.Equal(t, checkPeriod, s.keep())
	})
}

func TestAReplicaIsReadyWithoutAWebhookConfiguration(t *testing.T) {
	s := newStage(t, true, secretWith(nil))
	s.keep()
	s.look()
	require.NoError(t, s.source.Ready(nil))
}

func TestAnEmptiedCABundleIsWrittenAgain(t *testing.T) {
	s := newStage(t, true, secretWith(nil), configuration(nil))
	s.keep()
	s.keep()
	before := s.caBundle()
	object := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Name: testService}, object))
	object.Webhooks[0].ClientConfig.CABundle = nil
	object.Webhooks[2].ClientConfig.CABundle = []byte("garbage")
	require.NoError(t, s.client.Update(t.Context(), object))
	s.keep()
	require.Equal(t, before, s.caBundle())
}

// settled is a replica that is ready with a certificate by the CA.
func settledStage(t *testing.T, ca *testCA) *stage {
	t.Helper()
	s := newStage(t, false, secretWith(ca.secret(nil)), configuration(nil))
	s.keep()
	s.look()
	require.NoError(t, s.source.Ready(nil))
	s.pass(time.Minute)
	return s
}

func TestABrokenCertificateMustNotReplaceOneThatWorks(t *testing.T) {
	ca := newTestCA(t)
	s := settledStage(t, ca)
	good := s.served()
	for n, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		data := ca.secret(nil)
		data[key] = []byte("garbage")
		s.setSecret(data)
		s.keep()
		require.Equal(t, recheck, s.look())
		require.Equal(t, recheck, s.look())
		require.Same(t, good, s.served())
		require.NoError(t, s.source.Ready(nil), "what works goes on working")
		require.InDelta(t, 0, s.metric("rdma_webhook_certificate_valid"), 0)
		require.InDelta(t, n+1, s.metric("rdma_webhook_certificate_rejected_total"), 0, "once a version of the Secret")
		require.Len(t, s.caBundle(), 1)
	}
	s.setSecret(ca.secret(nil))
	s.look()
	require.NotSame(t, good, s.served())
	require.InDelta(t, 1, s.metric("rdma_webhook_certificate_valid"), 0)
	require.NoError(t, s.client.Delete(t.Context(), secretWith(nil)))
	good = s.served()
	s.look()
	require.Same(t, good, s.served())
	require.InDelta(t, 3, s.metric("rdma_webhook_certificate_rejected_total"), 0)
}

func TestANewCAAndTheOldOneOverlap(t *testing.T) {
	old, successor := newTestCA(t), newTestCA(t)
	s := settledStage(t, old)
	before := s.served()
	s.setSecret(successor.secret(nil))

	require.Zero(t, s.look(), "the replica hears first")
	require.Same(t, before, s.served())
	require.Equal(t, overlapTime, s.keep())
	require.Equal(t, bundle{successor.cert, old.cert}, s.caBundle())
	require.Equal(t, settle, s.look())
	require.Same(t, before, s.served())
	s.pass(settle)
	require.Zero(t, s.look())
	require.NotSame(t, before, s.served())
	require.True(t, bundle{successor.cert}.trusts(s.served(), testName, testNow))

	t.Run("a leader that comes to power meanwhile keeps it too", func(t *testing.T) {
		s.pass(overlapTime / 2)
		s.keeper = NewKeeper(s.keeper.cfg, false)
		s.keep()
		require.Equal(t, bundle{successor.cert, old.cert}, s.caBundle())
	})
	s.pass(overlapTime)
	require.Equal(t, checkPeriod, s.keep())
	require.Equal(t, bundle{successor.cert}, s.caBundle())
}

func TestEveryRenewalOfTheKeeperIsTakenUp(t *testing.T) {
	s := newStage(t, true, secretWith(nil), configuration(nil))
	s.keep()
	s.keep()
	s.look()
	for _, tc := range []struct {
		name   string
		remove []string
		newCA  bool
	}{
		{"the certificate was removed", []string{corev1.TLSCertKey}, false},
		{"and once more", []string{corev1.TLSCertKey}, false},
		{"everything was removed", []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, caCertKey, caPrivateKey}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := *s
			s.t = t
			before, trusted := s.served(), s.caBundle()
			data := maps.Clone(s.secret())
			for _, key := range tc.remove {
				delete(data, key)
			}
			s.setSecret(data)
			s.look()
			require.Same(t, before, s.served())
			s.keep()
			s.keep()
			require.True(t, s.caBundle().trusts(before, testName, testNow), "the one that is served stays trusted")
			require.Len(t, s.caBundle(), map[bool]int{false: len(trusted), true: len(trusted) + 1}[tc.newCA])
			s.look()
			s.pass(settle)
			s.look()
			require.NotSame(t, before, s.served())
			require.True(t, s.caBundle().trusts(s.served(), testName, testNow))
		})
	}
}

func TestTheKeeperSaysWhatItCannotDo(t *testing.T) {
	t.Run("there is no Secret", func(t *testing.T) {
		s := newStage(t, true, configuration(nil))
		_, err := s.keeper.Reconcile(t.Context(), reconcile.Request{})
		require.ErrorContains(t, err, "no Secret webhook-system/tenant-webhook-certs; create it empty")
	})
	t.Run("a write fails", func(t *testing.T) {
		s := newStage(t, true, secretWith(nil), configuration(nil))
		s.onPatch = func() error { return errors.New("no route") }
		_, err := s.keeper.Reconcile(t.Context(), reconcile.Request{})
		require.EqualError(t, err, "writing the CA and serving certificate into Secret webhook-system/tenant-webhook-certs: no route")
		s.onPatch = nil
		s.keep()
		s.onPatch = func() error { return errors.New("no route") }
		_, err = s.keeper.Reconcile(t.Context(), reconcile.Request{})
		require.EqualError(t, err, "writing the caBundle of MutatingWebhookConfiguration tenant-webhook: no route")
	})
	t.Run("without rotation it must not write the Secret", func(t *testing.T) {
		s := newStage(t, false, secretWith(nil), configuration(nil))
		s.onPatch = func() error { return errors.New("a write") }
		s.keep()
		require.Empty(t, s.secret())
	})
}

func TestAKeeperThatIsBehindMustNotOverwrite(t *testing.T) {
	s := newStage(t, true, secretWith(nil), configuration(nil))
	ca := newTestCA(t)
	s.onPatch = func() error { // somebody else writes in between
		s.onPatch = nil
		s.setSecret(ca.secret(nil))
		return nil
	}
	s.keep()
	require.Equal(t, string(ca.pem()), string(s.secret()[caCertKey]))
	s.keep()
	require.Equal(t, bundle{ca.cert}, s.caBundle())
}

func TestClientsOf(t *testing.T) {
	a, b := newTestCA(t), newTestCA(t)
	require.Equal(t, clients{}, clientsOf(nil, bundle{a.cert}), "no webhook")
	require.Equal(t, clients{}, clientsOf(map[string][]byte{"x": nil}, nil), "the API server's own roots")
	require.Equal(t, clients{known: true}, clientsOf(map[string][]byte{"x": nil}, bundle{a.cert}), "not written yet")
	both := bundle{a.cert, b.cert}
	cl := clientsOf(map[string][]byte{"x": both.encode(), "y": b.pem()}, nil)
	require.Equal(t, clients{known: true, trusted: bundle{b.cert}}, cl, "what all of them trust")
}

func TestMetricsAreNamedWell(t *testing.T) {
	s := newStage(t, true)
	problems, err := testutil.GatherAndLint(s.registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	_, err = NewSource(Config{Registerer: s.registry})
	require.True(t, err != nil && strings.Contains(err.Error(), "registering metrics of the serving certificate"), "%v", err)
}
