package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	tenantwebhook "tenant.network/tenant-webhook"
	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	webhookSystem = "webhook-system"
	certSecret    = "tenant-webhook-certs"
	hookConfig    = "tenant-webhook"
	serverName    = "tenant-webhook.webhook-system.svc"
)

// authority is a CA beside tenant-webhook's own, as cert-manager would have one.
type authority struct {
	rotator.CertRotator
	*rotator.KeyPairArtifacts
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{CertRotator: rotator.CertRotator{CAName: "ca", DNSName: serverName, ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}}
	var err error
	a.KeyPairArtifacts, err = a.CreateCACert(time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
	require.NoError(t, err)
	return a
}

// secret is a Secret's data with a new serving certificate.
func (a *authority) secret(t *testing.T) map[string][]byte {
	t.Helper()
	cert, key, err := a.CreateCertPEM(a.KeyPairArtifacts, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
	require.NoError(t, err)
	return map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, "ca.crt": a.CertPEM}
}

func (w *world) caBundle(ctx context.Context) ([]byte, error) {
	config, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, hookConfig, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return config.Webhooks[0].ClientConfig.CABundle, nil
}

func (w *world) certData() map[string][]byte {
	w.t.Helper()
	secret, err := w.client.CoreV1().Secrets(webhookSystem).Get(w.t.Context(), certSecret, metav1.GetOptions{})
	require.NoError(w.t, err)
	return secret.Data
}

// setCertData replaces the Secret's data.
func (w *world) setCertData(data map[string][]byte) {
	w.t.Helper()
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/data", "value": data}})
	require.NoError(w.t, err)
	_, err = w.client.CoreV1().Secrets(webhookSystem).Patch(w.t.Context(), certSecret, types.JSONPatchType, patch, metav1.PatchOptions{})
	require.NoError(w.t, err)
}

// bothServe waits until both replicas serve the certificate.
func (w *world) bothServe(certPEM []byte) {
	w.t.Helper()
	block, _ := pem.Decode(certPEM)
	require.NotNil(w.t, block)
	w.eventually("both replicas serve the certificate", func(ctx context.Context) error {
		for replica := range 2 {
			dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // which one it is, is compared
			conn, err := dialer.DialContext(ctx, "tcp", w.WebhookAddress(replica))
			if err != nil {
				return err
			}
			served := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
			if err := conn.Close(); err != nil {
				return err
			}
			if !bytes.Equal(served.Raw, block.Bytes) {
				return fmt.Errorf("replica %d serves another one", replica)
			}
		}
		return nil
	})
}

// load is what API servers do: handshakes by the caBundle as it is at that moment, and reviews.
type load struct {
	mu         sync.Mutex
	handshakes int
	creations  int
	failures   []error
	stop       func()
}

func (w *world) load() *load {
	ctx, cancel := context.WithCancel(w.t.Context())
	l := &load{}
	var wg sync.WaitGroup
	every := func(pause time.Duration, count *int, act func(ctx context.Context) error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := act(context.WithoutCancel(ctx))
				l.mu.Lock()
				if *count++; err != nil {
					l.failures = append(l.failures, err)
				}
				l.mu.Unlock()
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
		})
	}
	for range 2 {
		every(5*time.Millisecond, &l.handshakes, w.shakeHands)
	}
	plain := w.parse(podYAML("p", `{rdma.vf: "1"}`))
	every(10*time.Millisecond, &l.creations, func(ctx context.Context) error {
		_, err := w.client.CoreV1().Pods(tenantA).Create(ctx, plain, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	l.stop = func() { cancel(); wg.Wait() }
	w.t.Cleanup(l.stop)
	return l
}

func (w *world) shakeHands(ctx context.Context) error {
	trusted, err := w.caBundle(ctx)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(trusted) {
		return errors.New("the caBundle holds no certificate")
	}
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(w.WebhookURL(), "https://"))
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	return conn.Close()
}

// over ends the load and makes sure that nothing failed.
func (l *load) over(t *testing.T) {
	t.Helper()
	l.stop()
	t.Logf("%d handshakes and %d creations under load, %d failed", l.handshakes, l.creations, len(l.failures))
	require.Empty(t, l.failures)
	require.NotZero(t, l.handshakes)
	require.NotZero(t, l.creations)
}

// bundleHolds waits until the caBundle has the CA, and returns how many it has.
func (w *world) bundleHolds(ca []byte) int {
	w.t.Helper()
	var trusted []byte
	w.eventually("the caBundle holds the CA", func(ctx context.Context) error {
		var err error
		if trusted, err = w.caBundle(ctx); err == nil && !bytes.Contains(trusted, bytes.TrimSpace(ca)) {
			err = errors.New("it does not")
		}
		return err
	})
	return bytes.Count(trusted, []byte("BEGIN CERTIFICATE"))
}

// metricOf reads a metric without labels from a webhook replica.
func (w *world) metricOf(ctx context.Context, replica int, name string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.MetricsURL(devcluster.WebhookReplica(replica)), nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	var page bytes.Buffer
	if _, err = page.ReadFrom(response.Body); errors.Join(err, response.Body.Close()) != nil {
		return "", err
	}
	for line := range strings.Lines(page.String()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("no metric %s", name)
}

// TestCertificatesOfSomebodyElseAreTakenUp: what cert-manager writes into the Secret.
func TestCertificatesOfSomebodyElseAreTakenUp(t *testing.T) {
	ca, successor := newAuthority(t), newAuthority(t)
	w := newWorld(t, devcluster.Config{
		Without: []string{devcluster.TenantScheduler}, WebhookArgs: []string{"--cert-rotate=false"},
		Transform: func(object *unstructured.Unstructured) (bool, error) {
			if object.GetKind() != "Secret" || object.GetName() != certSecret {
				return true, nil
			}
			text, err := json.Marshal(map[string]any{"data": ca.secret(t)})
			if err != nil {
				return false, err
			}
			return true, json.Unmarshal(text, &object.Object)
		}})
	l := w.load()
	var last []byte
	for range 2 {
		data := ca.secret(t)
		w.setCertData(data)
		last = data[corev1.TLSCertKey]
		w.bothServe(last)
	}

	garbage := ca.secret(t)
	garbage[corev1.TLSCertKey] = []byte("garbage")
	w.setCertData(garbage)
	for replica := range 2 {
		w.eventually("the replica complains", func(ctx context.Context) error {
			valid, err := w.metricOf(ctx, replica, "rdma_webhook_certificate_valid")
			if err == nil && valid != "0" {
				err = fmt.Errorf("rdma_webhook_certificate_valid is %s", valid)
			}
			return err
		})
		rejected, err := w.metricOf(t.Context(), replica, "rdma_webhook_certificate_rejected_total")
		require.NoError(t, err)
		require.Equal(t, "1", rejected)
	}
	w.bothServe(last)

	require.Equal(t, 1, w.bundleHolds(ca.CertPEM))
	data := successor.secret(t)
	w.setCertData(data)
	require.Equal(t, 2, w.bundleHolds(successor.CertPEM))
	w.bothServe(data[corev1.TLSCertKey])
	require.Equal(t, 2, w.bundleHolds(ca.CertPEM), "the old CA stays for a while")
	l.over(t)
}

// TestTheWebhookKeepsItsOwnCertificate: cases W53, W54 of docs/cases.md.
func TestTheWebhookKeepsItsOwnCertificate(t *testing.T) {
	w := newWorld(t, devcluster.Config{Without: []string{devcluster.TenantScheduler}})
	first := w.certData()
	w.bothServe(first[corev1.TLSCertKey])
	require.Equal(t, 1, w.bundleHolds(first["ca.crt"]))
	l := w.load()
	renewed := func(what string, before map[string][]byte) map[string][]byte {
		w.eventually(what, func(context.Context) error {
			if now := w.certData()[corev1.TLSCertKey]; len(now) == 0 || bytes.Equal(now, before[corev1.TLSCertKey]) {
				return errors.New("it was not")
			}
			return nil
		})
		return w.certData()
	}
	data := first
	for range 2 {
		without := maps.Clone(data)
		delete(without, corev1.TLSCertKey)
		w.setCertData(without)
		data = renewed("the certificate was renewed", data)
		w.bothServe(data[corev1.TLSCertKey])
	}
	require.Equal(t, string(first["ca.crt"]), string(data["ca.crt"]))
	w.setCertData(map[string][]byte{})
	data = renewed("the CA was renewed", data)
	require.NotEqual(t, string(first["ca.crt"]), string(data["ca.crt"]))
	require.Equal(t, 2, w.bundleHolds(data["ca.crt"]))
	w.bothServe(data[corev1.TLSCertKey])
	require.Equal(t, 2, w.bundleHolds(first["ca.crt"]))
	l.over(t)

	t.Run("kubectl apply takes nothing away", func(t *testing.T) {
		w := w.in(t)
		before, err := w.caBundle(t.Context())
		require.NoError(t, err)
		_, port, ok := strings.Cut(strings.TrimPrefix(w.WebhookURL(), "https://"), ":")
		require.True(t, ok)
		for _, file := range []string{"manifests/webhook-config-tenant.yaml", "manifests/webhook-deploy.yaml"} {
			manifest, err := tenantwebhook.Manifests.ReadFile(file)
			require.NoError(t, err)
			if file == "manifests/webhook-deploy.yaml" {
				manifest, _, _ = bytes.Cut(manifest, []byte("\n---\n")) // the Secret
				require.Contains(t, string(manifest), "kind: Secret")
			}
			for range 2 {
				apply := exec.CommandContext(t.Context(), w.KubectlPath(), "--kubeconfig", w.KubeconfigPath(), "apply", "-f", "-")
				apply.Stdin = bytes.NewReader(bytes.ReplaceAll(manifest, []byte("port: 443"), []byte("port: "+port)))
				out, err := apply.CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
		}
		after, err := w.caBundle(t.Context())
		require.NoError(t, err)
		require.Equal(t, string(before), string(after))
		require.Equal(t, data, w.certData())
		require.NoError(t, w.shakeHands(t.Context()))
	})
	t.Run("a caBundle that was emptied is written again", func(t *testing.T) {
		w := w.in(t)
		_, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), hookConfig, types.JSONPatchType,
			[]byte(`[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]`), metav1.PatchOptions{})
		require.NoError(t, err)
		w.bundleHolds(data["ca.crt"])
		w.eventually("pods are reviewed", func(ctx context.Context) error {
			_, err := w.client.CoreV1().Pods(tenantA).Create(ctx, w.parse(podYAML("p", `{rdma.vf: "1"}`)), metav1.CreateOptions{})
			return err
		})
	})
}

func TestACertificateFromFilesIsServed(t *testing.T) {
	w := newWorld(t, devcluster.Config{WebhookCertFiles: true, Without: []string{devcluster.TenantScheduler}})
	require.Contains(t, w.create(podYAML("p", `{rdma.vf: "1"}`)).Finalizers, rdma.Finalizer)
	trusted, err := w.caBundle(t.Context())
	require.NoError(t, err)
	require.Equal(t, string(w.CA()), string(trusted))
	require.Empty(t, w.certData(), "nobody writes the Secret")
}
