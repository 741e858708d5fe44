package plugin

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/pools/poolconfig"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// cycle runs all points of one pod's way through the framework, as kube-scheduler does with the gate
// NominatedNodeNameForExpectation on or off, and returns what PreBindPreFlight said.
func (f *fixture) cycle(pod *corev1.Pod, preFlight bool) *fwk.Status {
	f.t.Helper()
	state := f.passed(pod)
	fitting := []fwk.NodeInfo{}
	for _, name := range []string{node1, node2} {
		if f.framework.RunFilterPluginsWithNominatedPods(f.context(), state, pod, f.nodeInfo(name)).IsSuccess() {
			fitting = append(fitting, f.nodeInfo(name))
		}
	}
	require.NotEmpty(f.t, fitting)
	requireSuccess(f.t, f.framework.RunPreScorePlugins(f.context(), state, pod, fitting))
	scored, status := f.framework.RunScorePlugins(f.context(), state, pod, fitting)
	requireSuccess(f.t, status)
	best := scored[0]
	for _, node := range scored {
		if node.TotalScore > best.TotalScore {
			best = node
		}
	}
	pod = assumed(pod, best.Name)
	requireSuccess(f.t, f.framework.RunReservePluginsReserve(f.context(), state, pod, best.Name))
	_, status = f.framework.RunPermitPlugins(f.context(), state, pod, best.Name)
	requireSuccess(f.t, status)
	var flight *fwk.Status
	if preFlight {
		flight = f.framework.RunPreBindPreFlights(f.context(), state, pod, best.Name)
	}
	requireSuccess(f.t, f.framework.RunPreBindPlugins(f.context(), state, pod, best.Name))
	requireSuccess(f.t, f.framework.RunBindPlugins(f.context(), state, pod, best.Name))
	f.framework.RunPostBindPlugins(f.context(), state, pod, best.Name)
	return flight
}

func TestCycle(t *testing.T) {
	for gate, preFlight := range map[string]bool{"PreBindPreFlight called": true, "PreBindPreFlight not called": false} {
		t.Run("ours is bound with its networks in one write, "+gate, func(t *testing.T) {
			f := newFixture(t, setup{placed: []*corev1.Pod{vfPod("holder", 1, onNode(node1))}})
			pod := vfPod("p", 1)
			f.create(pod)
			status := f.cycle(pod, preFlight)
			requireSuccess(t, status)
			stored := f.stored(pod)
			require.Equal(t, node2, stored.Spec.NodeName, "the freest node")
			require.Equal(t, "team-a/p-0@rdma0", stored.Annotations[rdma.NetworksAnnotation])
			require.Equal(t, node2, f.allocator.holds(pod.UID).Node)
			require.Equal(t, []string{oneWrite}, podWrites(f.client))
		})
		t.Run("a plain pod is skipped at each point and bound by DefaultBinder, "+gate, func(t *testing.T) {
			f := newFixture(t, setup{placed: []*corev1.Pod{vfPod("h1", 2, onNode(node1)), vfPod("h2", 2, onNode(node2))}})
			pod := plainPod(teamA, "p")
			f.create(pod)
			if status := f.cycle(pod, preFlight); preFlight {
				require.True(t, status.IsSkip())
			}
			stored := f.stored(pod)
			require.NotEmpty(t, stored.Spec.NodeName)
			require.NotContains(t, stored.Annotations, rdma.NetworksAnnotation)
			require.Empty(t, f.allocator.asked())
			require.Empty(t, f.nads.Actions())
			require.Equal(t, []string{oneWrite}, podWrites(f.client))
		})
	}
}

func TestCycleGivesARepeatedPodTheSameNetworks(t *testing.T) {
	f := newFixture(t, setup{})
	pod := vfPod("p", 2)
	f.create(pod)
	// The first attempt fails at Bind; the second goes to another node.
	state, status := f.prepared(pod)
	requireSuccess(t, status)
	f.framework.RunReservePluginsUnreserve(f.context(), state, pod, node1)
	before := f.allocator.holds(pod.UID).Networks

	state = f.passed(pod)
	requireSuccess(t, f.framework.RunPreBindPlugins(f.context(), state, assumed(pod, node2), node2))
	requireSuccess(t, f.framework.RunBindPlugins(f.context(), state, assumed(pod, node2), node2))
	require.Equal(t, node2, f.stored(pod).Spec.NodeName)
	require.Equal(t, before, f.allocator.holds(pod.UID).Networks)
	require.Equal(t, node2, f.allocator.holds(pod.UID).Node)
	require.Equal(t, "team-a/p-0@rdma0,team-a/p-1@rdma1", f.stored(pod).Annotations[rdma.NetworksAnnotation])
}

func TestReadCycleOfAPodThatIsNotOurs(t *testing.T) {
	c, err := readCycle(framework.NewCycleState())
	require.NoError(t, err)
	require.Nil(t, c)
}

func TestNewPluginRefusesToStart(t *testing.T) {
	good := newFixture(t, setup{})
	for name, tc := range map[string]struct {
		change func(*testing.T, *fake.Clientset)
		want   string
	}{
		"without a pool configuration": {
			change: func(t *testing.T, c *fake.Clientset) {
				t.Helper()
				require.NoError(t, c.Tracker().Delete(configMaps, poolconfig.DefaultNamespace, poolconfig.DefaultName))
			},
			want: "reading the pool configuration",
		},
		"with a pool configuration that is wrong": {
			change: func(t *testing.T, c *fake.Clientset) {
				t.Helper()
				require.NoError(t, c.Tracker().Update(configMaps, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: poolconfig.DefaultNamespace, Name: poolconfig.DefaultName},
					Data:       map[string]string{pools.PoolsKey: "no-domain"},
				}, poolconfig.DefaultNamespace))
			},
			want: `"no-domain"`,
		},
		"where the cluster cannot be identified": {
			change: func(t *testing.T, c *fake.Clientset) {
				t.Helper()
				require.NoError(t, c.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("namespaces"), "", metav1.NamespaceSystem))
			},
			want: "namespace kube-system",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(clusterObjects()...)
			tc.change(t, client)
			args := defaultArgs()
			_, err := newPlugin(good.context(), args, clientHandle{good.framework, client}, good.allocator, good.TenantNetwork.nads, good.clock)
			require.ErrorContains(t, err, tc.want)
		})
	}
	t.Run("unless the cluster has a name", func(t *testing.T) {
		client := fake.NewClientset(clusterObjects()...)
		require.NoError(t, client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("namespaces"), "", metav1.NamespaceSystem))
		args := defaultArgs()
		args.Cluster = "east"
		p, err := newPlugin(good.context(), args, clientHandle{good.framework, client}, good.allocator, good.TenantNetwork.nads, good.clock)
		require.NoError(t, err)
		require.Equal(t, "east", p.cluster)
	})
}

func TestNewRefusesWhatItIsTold(t *testing.T) {
	f := newFixture(t, setup{})
	for name, tc := range map[string]struct{ raw, want string }{
		"a misspelled field":                 {"cluser: east", `"cluser"`},
		"a URL that is none":                 {"tenantController: {url: somewhere}", `"somewhere"`},
		"more retries than a pod could wait": {"tenantController: {retries: 99}", "99"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(urlVariable, "")
			_, err := New(f.context(), unknown(tc.raw), f.framework)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// clientHandle is a framework over another API server.
type clientHandle struct {
	framework.Framework
	client *fake.Clientset
}

func (h clientHandle) ClientSet() kubernetes.Interface { return h.client }
