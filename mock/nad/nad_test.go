package nad

import (
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned/fake"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

const podUID = types.UID("7d3b5d32-9c6e-4c1c-8f6e-0b8f6f3f3a52")

var ask = tenant.EnsureRequest{
	Cluster: "c1", Namespace: "team-a", Pod: "train-0", Tenant: "team-a", Node: "n1",
	Requests: []tenant.Request{{Type: "vf", Pool: "nvidia.com/vf", Count: 2}, {Type: "pf", Pool: "rdma/shared", Count: 1}},
}

// life is a mock over the cluster; a second one is the mock after a restart.
func life(t *testing.T, cluster *fake.Clientset, generation int64) *tenant.Client {
	t.Helper()
	store := New(cluster)
	e := engine.New(engine.Options{Networks: store, Generation: generation})
	allocations, err := store.Allocations(t.Context())
	require.NoError(t, err)
	e.Restore(allocations)
	server := httptest.NewServer(e.Handler())
	t.Cleanup(server.Close)
	client, err := tenant.New(tenant.Config{URL: server.URL, Timeout: 30 * time.Second, Retries: -1})
	require.NoError(t, err)
	return client
}

func definitions(t *testing.T, cluster *fake.Clientset) []netv1.NetworkAttachmentDefinition {
	t.Helper()
	list, err := cluster.K8sCniCncfIoV1().NetworkAttachmentDefinitions("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

func TestNetworksExistBeforeTheAnswer(t *testing.T) {
	cluster := fake.NewSimpleClientset()
	allocation, err := life(t, cluster, 0).Ensure(t.Context(), podUID, ask)
	require.NoError(t, err)
	found := definitions(t, cluster)
	require.Len(t, found, 3)
	for i, d := range found {
		network := allocation.Networks[i]
		assert.Equal(t, network.Namespace+"/"+network.Name, d.Namespace+"/"+d.Name)
		assert.Equal(t, string(podUID), d.Labels[rdma.PodUIDLabel])
		assert.Contains(t, d.Spec.Config, `"type":"bridge"`)
	}
	assert.Equal(t, "nvidia.com/vf", found[0].Annotations[rdma.ResourceNameAnnotation])
	assert.NotContains(t, found[2].Annotations, rdma.ResourceNameAnnotation, "a shared pool's token must not reach a CNI plugin")
}

func TestRestartKeepsAllocations(t *testing.T) {
	cluster := fake.NewSimpleClientset()
	first := life(t, cluster, 0)
	made, err := first.Ensure(t.Context(), podUID, ask)
	require.NoError(t, err)
	moved := ask
	moved.Node, moved.Generation = "n2", made.Generation
	before, err := first.Ensure(t.Context(), podUID, moved)
	require.NoError(t, err)

	second := life(t, cluster, 0)
	after, err := second.Get(t.Context(), "c1", podUID)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(before, after))
	moved.Generation = before.Generation
	again, err := second.Ensure(t.Context(), podUID, moved)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(before, again))
	require.NoError(t, second.Release(t.Context(), "c1", podUID, before.Generation))
	assert.Empty(t, definitions(t, cluster))
}

func TestWithoutMemoryTheSameNetworksAreFoundAgain(t *testing.T) {
	cluster := fake.NewSimpleClientset()
	e := engine.New(engine.Options{Networks: New(cluster)})
	before, err := e.Ensure(t.Context(), podUID, ask)
	require.NoError(t, err)
	assert.Equal(t, 1, e.Forget(podUID))
	after, err := e.Ensure(t.Context(), podUID, ask)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(before.Networks, after.Networks))
	assert.Greater(t, after.Generation, before.Generation)
	assert.Len(t, definitions(t, cluster), 3)
}

func TestMustNotTouchSomebodyElsesNetwork(t *testing.T) {
	cluster := fake.NewSimpleClientset()
	client := life(t, cluster, 0)
	allocation, err := client.Ensure(t.Context(), podUID, ask)
	require.NoError(t, err)
	networks := cluster.K8sCniCncfIoV1().NetworkAttachmentDefinitions("team-a")
	stolen := definitions(t, cluster)[0]
	stolen.Labels[rdma.PodUIDLabel] = "another"
	_, err = networks.Update(t.Context(), &stolen, metav1.UpdateOptions{})
	require.NoError(t, err)

	moved := ask
	moved.Node, moved.Generation = "n2", allocation.Generation
	_, err = client.Ensure(t.Context(), podUID, moved)
	assert.True(t, tenant.IsFinal(err), "%v", err)
	assert.ErrorContains(t, err, `belongs to pod UID "another"`)
	require.NoError(t, client.Release(t.Context(), "c1", podUID, 0))
	left := definitions(t, cluster)
	require.Len(t, left, 1)
	assert.Equal(t, allocation.Networks[0].Name, left[0].Name)
	restored, err := New(cluster).Allocations(t.Context())
	require.NoError(t, err)
	assert.Empty(t, restored, "a network with another pod's memory must not become an allocation")
}

func TestAFailingClusterLeavesNothingBehindInTheEnd(t *testing.T) {
	resource := schema.GroupResource{Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions"}
	tests := []struct {
		name      string
		err       error
		wantFinal bool
	}{
		{"an API server that is away is asked again later", errors.New("connection refused"), false},
		{"a missing namespace is final", apierrors.NewNotFound(resource, "team-a"), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cluster := fake.NewSimpleClientset()
			broken, creations := true, 0
			cluster.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				creations++
				return broken && creations == 2, nil, test.err // the second of three networks
			})
			client := life(t, cluster, 0)
			_, err := client.Ensure(t.Context(), podUID, ask)
			assert.Equal(t, test.wantFinal, tenant.IsFinal(err), "%v", err)
			assert.Equal(t, !test.wantFinal, tenant.IsUnavailable(err), "%v", err)
			listed, err := client.List(t.Context(), "c1")
			require.NoError(t, err)
			if test.wantFinal {
				assert.Empty(t, listed)
				assert.Empty(t, definitions(t, cluster), "a refusal must not leave anything behind")
			} else if assert.Len(t, listed, 1, "the sweep must see what was begun") {
				assert.Empty(t, listed[0].Networks, "and must not be shown networks that are not there")
			}

			broken = false
			_, err = client.Ensure(t.Context(), podUID, ask)
			require.NoError(t, err)
			assert.Len(t, definitions(t, cluster), 3)
			require.NoError(t, client.Release(t.Context(), "c1", podUID, 0))
			assert.Empty(t, definitions(t, cluster))
		})
	}
}

func TestWithoutTheCRDThereIsNothingToRemember(t *testing.T) {
	cluster := fake.NewSimpleClientset()
	cluster.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{}, "")
	})
	allocations, err := New(cluster).Allocations(t.Context())
	require.NoError(t, err)
	assert.Empty(t, allocations)
}
