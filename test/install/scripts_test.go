// Package install proves that the project can be installed, tried, upgraded and taken away as the documents say: with
// the shipped files, scripts and chart, on a development cluster.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"tenant.network/tenant-webhook/internal/devcluster"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// patience bounds one command: the machine may be busy, the system is not slow.
const patience = 5 * time.Minute

const (
	system     = "webhook-system"
	repository = "../.."
)

// world is a cluster on which nothing is installed yet, and a shell in the repository that uses it.
type world struct {
	*devcluster.Cluster
	t       *testing.T
	client  kubernetes.Interface
	overlay string
	env     []string
}

// newWorld starts a cluster that ends with the test. The components are added to the overlay for development clusters.
func newWorld(t *testing.T, config devcluster.Config, components ...string) *world {
	t.Helper()
	config.Dir = t.TempDir()
	config.BinDir = filepath.Join(repository, "bin")
	config.FollowDeployments = true
	config.LeaderElect = true
	if config.TenantNamespaces == nil {
		config.TenantNamespaces = []string{}
	}
	config.Log = os.Stderr
	cluster, err := devcluster.Start(t.Context(), config)
	require.NoError(t, err)
	w := &world{Cluster: cluster, t: t, client: cluster.Client()}
	t.Cleanup(func() {
		if t.Failed() {
			w.dumpLogs()
		}
		if err := cluster.Shutdown(); err != nil {
			t.Errorf("stopping the cluster: %v", err)
		}
	})
	for i, component := range components {
		components[i] = filepath.Join(repository, "deploy/components", component)
	}
	w.overlay, err = cluster.WriteOverlay(filepath.Join(repository, "deploy/overlays/devcluster"), components...)
	require.NoError(t, err)
	// The scripts call kubectl by its name, as users have it.
	path := filepath.Dir(cluster.KubectlPath()) + string(filepath.ListSeparator) + os.Getenv("PATH")
	w.env = append(os.Environ(), "KUBECONFIG="+cluster.KubeconfigPath(), "PATH="+path)
	return w
}

func (w *world) dumpLogs() {
	for _, name := range w.Components() {
		data, err := os.ReadFile(w.LogPath(name))
		if err != nil || name == devcluster.Etcd || name == devcluster.APIServer {
			continue
		}
		w.t.Logf("end of %s:\n%s", name, data[max(0, len(data)-3000):])
	}
}

// command runs a program in the repository and returns what it printed.
func (w *world) command(name string, args ...string) (string, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = repository
	cmd.Env = w.env
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, os.Stderr)
	cmd.Stderr = cmd.Stdout
	w.t.Logf("$ %s %s", name, strings.Join(args, " "))
	err := cmd.Run()
	return out.String(), err
}

func (w *world) bash(line string) (string, error) {
	w.t.Helper()
	return w.command("bash", "-euo", "pipefail", "-c", line)
}

// do runs a line of shell that must succeed.
func (w *world) do(line string) string {
	w.t.Helper()
	out, err := w.bash(line)
	require.NoError(w.t, err, "%s\n%s", line, out)
	return out
}

// nothingOfOurs makes sure that the cluster has no trace of the project.
func (w *world) nothingOfOurs() {
	w.t.Helper()
	w.nothingLabelled()
	pods, err := w.client.CoreV1().Pods(metav1.NamespaceAll).List(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	for i := range pods.Items {
		require.NotContains(w.t, pods.Items[i].Finalizers, rdma.Finalizer, pods.Items[i].Name)
	}
	out := w.do("kubectl get namespace " + system + " --ignore-not-found -o name")
	require.Empty(w.t, out)
}

// nothingLabelled makes sure that no object of the cluster has our label. EndpointSlices, which Kubernetes makes for our
// Services, it removes in its own time.
func (w *world) nothingLabelled() {
	w.t.Helper()
	require.Empty(w.t, w.do(`kubectl get "$(kubectl api-resources --verbs=list -o name | grep -v -e ^events -e ^endpoints$ -e ^endpointslices -e ^componentstatuses$ | paste -sd,)" \
		-A -l `+partOf+` --ignore-not-found -o name`))
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		slices, err := w.client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(w.t.Context(), metav1.ListOptions{LabelSelector: partOf})
		require.NoError(c, err)
		require.Empty(c, slices.Items)
	}, patience, 50*time.Millisecond)
}

const partOf = "app.kubernetes.io/part-of=tenant-webhook"

func TestScriptsInstallTestAndRemove(t *testing.T) {
	w := newWorld(t, devcluster.Config{Nodes: bareNodes()})

	t.Run("a dry run changes nothing", func(t *testing.T) {
		w := w.in(t)
		out := w.do("scripts/deploy.sh --dry-run " + w.overlay)
		require.Contains(t, out, "deployment.apps/tenant-webhook created (dry run)")
		w.nothingOfOurs()
	})
	t.Run("installing, and then trying every promise", func(t *testing.T) {
		w := w.in(t)
		w.do("scripts/deploy.sh " + w.overlay)
		out := w.do("scripts/self-test.sh " + w.overlay)
		require.NotContains(t, out, "✗")
		require.Regexp(t, `all \d+ checks passed`, out)
		require.NotContains(t, w.do("kubectl get nodes -o yaml"), "mlnx_sriov_rdma", "the devices that do not exist must be gone")
		require.Empty(t, w.do("kubectl get namespace rdma-self-test rdma-self-test-plain --ignore-not-found -o name"))
	})
	t.Run("installing again changes nothing", func(t *testing.T) {
		w := w.in(t)
		before := w.do("kubectl get mutatingwebhookconfiguration tenant-webhook -o jsonpath='{.webhooks[0].clientConfig.caBundle}'")
		require.NotEmpty(t, before)
		out := w.do("kubectl apply -k " + w.overlay)
		for line := range strings.Lines(out) {
			// kubectl patches these each time, since their selectors have the patch strategy "replace".
			if !strings.HasPrefix(line, "poddisruptionbudget.") && !strings.HasPrefix(line, "validatingadmissionpolicy.") {
				require.Contains(t, line, " unchanged")
			}
		}
		w.do("kubectl diff -k " + w.overlay)
		require.Equal(t, before, w.do("kubectl get mutatingwebhookconfiguration tenant-webhook -o jsonpath='{.webhooks[0].clientConfig.caBundle}'"))
		w.do("scripts/deploy.sh " + w.overlay)
	})
	t.Run("a scheduler configuration that was only applied is taken up", func(t *testing.T) {
		w := w.in(t)
		dir := t.TempDir()
		w.do("kubectl kustomize " + w.overlay + " | sed 's/scoringStrategy: Spread/scoringStrategy: BinPack/' >" + dir + "/all.yaml")
		w.do("echo 'resources: [all.yaml]' >" + dir + "/kustomization.yaml && kubectl apply -k " + dir)
		const restarts = "the scheduler's configuration changed: restarting it"
		require.Contains(t, w.do("scripts/deploy.sh "+dir), restarts)
		require.NotContains(t, w.do("scripts/deploy.sh "+dir), restarts)
		require.Contains(t, w.do("scripts/deploy.sh "+w.overlay), restarts)
	})
	t.Run("removing leaves nothing, and may be done again", func(t *testing.T) {
		w := w.in(t)
		require.Contains(t, w.do("scripts/deploy.sh --uninstall --dry-run"), "would delete Deployment webhook-system/tenant-webhook")
		w.do("scripts/deploy.sh --uninstall " + w.overlay)
		w.nothingOfOurs()
		w.do("scripts/deploy.sh --uninstall " + w.overlay)
	})
	t.Run("the self-test installs what it does not find, and takes it away", func(t *testing.T) {
		w := w.in(t)
		out := w.do("scripts/self-test.sh " + w.overlay)
		require.Regexp(t, `all \d+ checks passed`, out)
		w.nothingOfOurs()
	})
}

// bareNodes offer no devices, as the nodes of a cluster without RDMA hardware.
func bareNodes() []devcluster.Node { return []devcluster.Node{{Name: "node-1"}, {Name: "node-2"}} }

// redirect has the installed webhook called where it runs, as the overlay for development clusters does.
func (w *world) redirect() {
	w.t.Helper()
	w.do(`kubectl -n webhook-system patch service tenant-webhook --type=merge -p '{"spec": {"type": "ExternalName", "externalName": "127.0.0.1"}}'`)
	port, err := url.Parse(w.WebhookURL())
	require.NoError(w.t, err)
	w.do(fmt.Sprintf(`kubectl patch mutatingwebhookconfiguration tenant-webhook --type=json -p '[
		{"op": "replace", "path": "/webhooks/0/clientConfig/service/port", "value": %s}]'`, port.Port()))
}

// in is the world for a subtest.
func (w *world) in(t *testing.T) *world {
	t.Helper()
	sub := *w
	sub.t = t
	return &sub
}

func TestScriptsMustNot(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	w.do("scripts/deploy.sh " + w.overlay)
	w.apply("deploy/example-test-pod.yaml", "deploy/example-deployment.yaml")
	w.do("kubectl -n tenant-a wait --for=condition=Ready pod/rdma-test-pod --timeout=120s")
	w.do("kubectl -n tenant-a rollout status deployment/rdma-test-deployment --timeout=120s")

	t.Run("uninstall while RDMA pods live", func(t *testing.T) {
		w := w.in(t)
		out, err := w.bash("scripts/deploy.sh --uninstall")
		require.Error(t, err)
		require.Contains(t, out, "3 RDMA pods live")
		require.Contains(t, out, "tenant-a/rdma-test-pod")
		require.NotEmpty(t, w.do("kubectl get mutatingwebhookconfiguration tenant-webhook -o name"))
	})
	t.Run("accept what they do not know", func(t *testing.T) {
		w := w.in(t)
		for _, tc := range []struct{ line, want string }{
			{"scripts/deploy.sh no-such-overlay", "'no-such-overlay' is neither a directory with a kustomization.yaml nor one of"},
			{"scripts/deploy.sh --dryrun", "unknown flag '--dryrun'"},
			{"scripts/deploy.sh --timeout 5m", "--timeout: '5m' must be a number of seconds above 0"},
			{"scripts/deploy.sh --force", "--force goes with --uninstall only"},
			{"scripts/deploy.sh mock mock-sidecar", "one overlay only"},
			{"scripts/self-test.sh no-such-overlay --timeout 1", "'no-such-overlay' is neither"},
			{"scripts/self-test.sh --timeout", "--timeout: '' must be a number of seconds above 0"},
			{"scripts/self-test.sh -x", "unknown flag '-x'"},
		} {
			out, err := w.bash(tc.line)
			require.Error(t, err, tc.line)
			require.Contains(t, out, tc.want)
		}
	})
	t.Run("pass the self-test on a broken installation, nor leave anything of it", func(t *testing.T) {
		w := w.in(t)
		w.do("kubectl delete validatingadmissionpolicybinding tenant-webhook-guard")
		out, err := w.bash("scripts/self-test.sh --timeout 30 " + w.overlay)
		require.Error(t, err)
		require.Contains(t, out, "✗ a tenant cannot change its networks: it was accepted")
		require.Contains(t, out, "✗ applying it again changes nothing")
		require.Empty(t, w.do("kubectl get namespace rdma-self-test rdma-self-test-plain --ignore-not-found -o name"))
		w.do("scripts/deploy.sh " + w.overlay)
	})
	t.Run("leave a pod behind when forced", func(t *testing.T) {
		w := w.in(t)
		w.do("scripts/deploy.sh --uninstall --force")
		w.nothingOfOurs()
		out := w.do("kubectl -n tenant-a get network-attachment-definitions.k8s.cni.cncf.io -o name")
		require.Empty(t, out, "the networks are given back")
	})
}

func TestForcedUninstallDoesNotNeedTheTenantController(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	w.do("scripts/deploy.sh " + w.overlay)
	w.apply("deploy/example-test-pod.yaml")
	w.do("kubectl -n tenant-a wait --for=condition=Ready pod/rdma-test-pod --timeout=120s")
	w.do("kubectl -n webhook-system scale deployment/tenant-controller --replicas=0")
	out := w.do("scripts/deploy.sh --uninstall --force --timeout 20")
	require.Contains(t, out, "not released: tenant-a rdma-test-pod")
	w.nothingOfOurs()
}

// TestUninstallSparesWhatIsNotOurs: the tenant-controller may live in the same namespace.
func TestUninstallSparesWhatIsNotOurs(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	w.do("scripts/deploy.sh " + w.overlay)
	w.do("kubectl -n webhook-system create secret generic somebody-elses")
	out := w.do("scripts/deploy.sh --uninstall")
	require.Contains(t, out, "namespace webhook-system stays: it holds what is not ours (secret/somebody-elses")
	require.Contains(t, w.do("kubectl -n webhook-system get secrets -o name"), "secret/somebody-elses")
	w.nothingLabelled()
}

func TestOverlays(t *testing.T) {
	w := newWorld(t, devcluster.Config{Without: []string{devcluster.Kwok, devcluster.KubeScheduler}, Nodes: []devcluster.Node{}})
	w.do(certManagerCRD("issuers", "Issuer") + certManagerCRD("certificates", "Certificate"))
	w.do("kubectl wait --for=condition=Established crd issuers.cert-manager.io certificates.cert-manager.io --timeout=60s")
	t.Run("are found by their names, whatever directories of that name the repository has", func(t *testing.T) {
		w := w.in(t)
		overlays, err := os.ReadDir(filepath.Join(repository, "deploy/overlays"))
		require.NoError(t, err)
		require.NotEmpty(t, overlays)
		for _, overlay := range overlays {
			out := w.do("scripts/deploy.sh --dry-run " + overlay.Name())
			require.Contains(t, out, "deployment.apps/tenant-webhook created (dry run)", overlay.Name())
		}
	})
	t.Run("can be exchanged for each other", func(t *testing.T) {
		w := w.in(t)
		for _, dir := range []string{"manifests", "deploy/overlays/scheduler-only", "manifests", "deploy/overlays/scheduler-beside",
			"deploy/overlays/scheduler-only", "deploy/overlays/scheduler-beside"} {
			w.do("kubectl apply -k " + dir)
			w.do("kubectl diff -k " + dir)
			want := podSpec(t, decode(t, kustomize(t, dir))[schedulerDeployment])["topologySpreadConstraints"]
			var got any
			require.NoError(t, json.Unmarshal([]byte(w.do("kubectl -n webhook-system get deployment tenant-scheduler -o jsonpath='{.spec.template.spec.topologySpreadConstraints}'")), &got))
			require.Equal(t, want, got, dir)
		}
	})
}

// TestQuickStart goes the short way: devices that do not exist, the mock, the script, the example.
func TestQuickStart(t *testing.T) {
	w := newWorld(t, devcluster.Config{Nodes: bareNodes()})
	w.do(`kubectl patch node node-1 --subresource=status --type=merge \
		-p '{"status": {"capacity": {"mellanox.com/mlnx_sriov_rdma": "4"}, "allocatable": {"mellanox.com/mlnx_sriov_rdma": "4"}}}'`)
	w.do("kubectl apply -f mock/tenant-controller.yaml")
	w.do("scripts/deploy.sh " + w.overlay)
	w.apply("deploy/example-test-pod.yaml")
	w.do("kubectl -n tenant-a wait --for=condition=Ready pod/rdma-test-pod --timeout=120s")
	require.Equal(t, "node-1", w.do("kubectl -n tenant-a get pod rdma-test-pod -o jsonpath='{.spec.nodeName}'"))
}

// TestFilesApplyOneByOne goes the way of whoever applies the files by hand, in the documented order.
func TestFilesApplyOneByOne(t *testing.T) {
	w := newWorld(t, devcluster.Config{})
	for _, file := range []string{"resource-pool-config.yaml", "webhook-rabc.yaml", "webhook-deploy.yaml", "webhook-config-tenant.yaml"} {
		w.do("cd manifests && kubectl apply -f " + file)
	}
	for _, file := range []string{"mock/tenant-controller.yaml", "manifests/scheduler-rbac.yaml", "manifests/scheduler-config.yaml",
		"manifests/scheduler-deploy.yaml", "manifests/guard.yaml", "manifests/network-policy.yaml"} {
		w.do("kubectl apply -f " + file)
	}
	// The fake nodes have no network for the Service.
	w.redirect()
	w.do("kubectl -n webhook-system rollout status deployment/tenant-webhook")
	w.apply("deploy/example-test-pod.yaml")
	w.do("kubectl -n tenant-a wait --for=condition=Ready pod/rdma-test-pod --timeout=120s")
	require.Equal(t, "mellanox.com/mlnx_sriov_rdma", w.do(`kubectl -n tenant-a get pod rdma-test-pod -o jsonpath='{.metadata.annotations.tenant\.network/resource-pool}'`))
}
