// Package nad keeps the mock's networks as NetworkAttachmentDefinitions, and its memory on them.
package nad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	netclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

// AllocationAnnotation holds the allocation as JSON, on each of its networks. It is all that the mock has on disk.
const AllocationAnnotation = rdma.Domain + "allocation"

// sharedPrefix is that of pools whose device is a token: their networks must not be fed with it.
const sharedPrefix = "rdma/"

// Store is engine.Networks in a cluster.
type Store struct {
	client netclient.Interface
}

var _ engine.Networks = &Store{}

// New returns a store that uses the client.
func New(client netclient.Interface) *Store { return &Store{client: client} }

// Create implements engine.Networks.
func (s *Store) Create(ctx context.Context, allocation tenant.Allocation) error {
	memory, err := remember(allocation)
	if err != nil {
		return err
	}
	for _, network := range allocation.Networks {
		if err := s.ensure(ctx, definition(allocation, network, memory)); err != nil {
			return classify(fmt.Errorf("network %s/%s: %w", network.Namespace, network.Name, err))
		}
	}
	return nil
}

// ensure creates the object, or refreshes the memory on the one that is there.
func (s *Store) ensure(ctx context.Context, want *netv1.NetworkAttachmentDefinition) error {
	definitions := s.client.K8sCniCncfIoV1().NetworkAttachmentDefinitions(want.Namespace)
	_, err := definitions.Create(ctx, want, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := definitions.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if have.Labels[rdma.PodUIDLabel] != want.Labels[rdma.PodUIDLabel] {
		return fmt.Errorf("%w: it exists and belongs to pod UID %q", engine.ErrRefused, have.Labels[rdma.PodUIDLabel])
	}
	memory := want.Annotations[AllocationAnnotation]
	if have.Annotations[AllocationAnnotation] == memory {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         have.UID, // or a namesake made just now would be patched
		"annotations": map[string]string{AllocationAnnotation: memory},
	}})
	if err != nil {
		return err
	}
	_, err = definitions.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Delete implements engine.Networks. The label is looked at first: a namesake of somebody else's stays.
func (s *Store) Delete(ctx context.Context, allocation tenant.Allocation) error {
	for _, network := range allocation.Networks {
		definitions := s.client.K8sCniCncfIoV1().NetworkAttachmentDefinitions(network.Namespace)
		have, err := definitions.Get(ctx, network.Name, metav1.GetOptions{})
		if err == nil && have.Labels[rdma.PodUIDLabel] == string(allocation.PodUID) {
			uid := have.UID
			err = definitions.Delete(ctx, network.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("network %s/%s: %w", network.Namespace, network.Name, err)
		}
	}
	return nil
}

// pageSize bounds one list request.
const pageSize = 500

// Allocations reads the memory of an earlier life from all networks of the cluster. What does not make sense is
// logged and left alone. Without the CRD there is nothing to remember.
func (s *Store) Allocations(ctx context.Context) ([]tenant.Allocation, error) {
	type key struct {
		cluster string
		podUID  types.UID
	}
	newest := map[key]tenant.Allocation{}
	options := metav1.ListOptions{LabelSelector: rdma.PodUIDLabel, Limit: pageSize}
	for {
		page, err := s.client.K8sCniCncfIoV1().NetworkAttachmentDefinitions(metav1.NamespaceAll).List(ctx, options)
		if apierrors.IsNotFound(err) {
			slog.WarnContext(ctx, "the NetworkAttachmentDefinition CRD is not installed")
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("listing networks: %w", err)
		}
		for i := range page.Items {
			allocation, err := recall(&page.Items[i])
			if err != nil {
				slog.WarnContext(ctx, "ignoring a network", "network", page.Items[i].Namespace+"/"+page.Items[i].Name, "err", err)
				continue
			}
			// A change that was cut short may have reached some networks of a pod only.
			k := key{allocation.Cluster, allocation.PodUID}
			if allocation.Generation > newest[k].Generation {
				newest[k] = allocation
			}
		}
		if page.Continue == "" {
			break
		}
		options.Continue = page.Continue
	}
	var allocations []tenant.Allocation
	for _, allocation := range newest {
		allocations = append(allocations, allocation)
	}
	return allocations, nil
}

func remember(allocation tenant.Allocation) (string, error) {
	allocation.AgeSeconds = 0
	memory, err := json.Marshal(allocation)
	if err != nil {
		return "", fmt.Errorf("encoding the allocation: %w", err)
	}
	return string(memory), nil
}

// recall believes only what fits the object that it stands on, which a tenant may have edited or copied.
func recall(definition *netv1.NetworkAttachmentDefinition) (tenant.Allocation, error) {
	var allocation tenant.Allocation
	if err := json.Unmarshal([]byte(definition.Annotations[AllocationAnnotation]), &allocation); err != nil {
		return allocation, fmt.Errorf("annotation %s: %w", AllocationAnnotation, err)
	}
	if string(allocation.PodUID) != definition.Labels[rdma.PodUIDLabel] || allocation.Namespace != definition.Namespace {
		return allocation, errors.New("the allocation remembered is another pod's")
	}
	for _, network := range allocation.Networks {
		if network.Namespace == definition.Namespace && network.Name == definition.Name {
			return allocation, nil
		}
	}
	return allocation, errors.New("the allocation remembered does not have this network")
}

// definition describes one network: a bridge without addresses, which every node with the standard CNI plugins can
// attach without hardware.
func definition(allocation tenant.Allocation, network tenant.Network, memory string) *netv1.NetworkAttachmentDefinition {
	annotations := map[string]string{AllocationAnnotation: memory}
	if !strings.HasPrefix(network.Pool, sharedPrefix) {
		annotations[rdma.ResourceNameAnnotation] = network.Pool
	}
	return &netv1.NetworkAttachmentDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   network.Namespace,
			Name:        network.Name,
			Labels:      map[string]string{rdma.PodUIDLabel: string(allocation.PodUID)},
			Annotations: annotations,
		},
		Spec: netv1.NetworkAttachmentDefinitionSpec{Config: cniConfig(allocation.Tenant)},
	}
}

// cniConfig is what stands for a virtual function where there is no hardware: an interface on the tenant's own bridge, with
// an address from the block for benchmarks (RFC 2544). The network's name is the same for all: by it host-local keeps the
// addresses apart.
func cniConfig(tenantName string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(tenantName))
	// 13 bytes: an interface's name has at most 15.
	return fmt.Sprintf(`{"cniVersion":"0.3.1","name":"rdma","type":"bridge","bridge":"rdma-%08x","ipam":{"type":"host-local","subnet":"198.18.0.0/15"}}`, hash.Sum32())
}

// classify marks what will be the same next time.
func classify(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return fmt.Errorf("%w: %w", engine.ErrRefused, err)
	}
	return err
}
