package conformance

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned/fake"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/mock/nad"
	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

func TestAWrongImplementationInAClusterFailsByTheClauseThatItBreaks(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		networks   func(*nad.Store, *fake.Clientset) *wrongNetworks
		wantBroken string
	}{
		{"networks are made after the answer", func(s *nad.Store, _ *fake.Clientset) *wrongNetworks {
			return &wrongNetworks{Store: s, create: func(context.Context, tenant.Allocation) error { return nil }}
		}, "networks/exist"},
		{"networks do not say whose they are", func(s *nad.Store, c *fake.Clientset) *wrongNetworks {
			return &wrongNetworks{Store: s, create: func(ctx context.Context, a tenant.Allocation) error {
				label := func(o *metav1.ObjectMeta) { o.Labels[rdma.PodUIDLabel] = string(a.PodUID) }
				_ = spoil(ctx, c, a, label) // or the store would not know its own
				return cmp.Or(s.Create(ctx, a), spoil(ctx, c, a, func(o *metav1.ObjectMeta) { o.Labels[rdma.PodUIDLabel] = "" }))
			}}
		}, "networks/exist"},
		{"networks have no resource name", func(s *nad.Store, c *fake.Clientset) *wrongNetworks {
			return &wrongNetworks{Store: s, create: func(ctx context.Context, a tenant.Allocation) error {
				return cmp.Or(s.Create(ctx, a), spoil(ctx, c, a, func(o *metav1.ObjectMeta) { delete(o.Annotations, rdma.ResourceNameAnnotation) }))
			}}
		}, "networks/exist"},
		{"a shared pool's token reaches the CNI plugin", func(s *nad.Store, c *fake.Clientset) *wrongNetworks {
			return &wrongNetworks{Store: s, create: func(ctx context.Context, a tenant.Allocation) error {
				return cmp.Or(s.Create(ctx, a), spoil(ctx, c, a, func(o *metav1.ObjectMeta) { o.Annotations[rdma.ResourceNameAnnotation] = "rdma/shared" }))
			}}
		}, "networks/exist"},
		{"a move makes the networks anew", func(s *nad.Store, c *fake.Clientset) *wrongNetworks {
			return &wrongNetworks{Store: s, create: func(ctx context.Context, a tenant.Allocation) error {
				generation := types.UID(strconv.FormatInt(a.Generation, 10))
				return cmp.Or(s.Delete(ctx, a), s.Create(ctx, a), spoil(ctx, c, a, func(o *metav1.ObjectMeta) { o.UID = generation }))
			}}
		}, "networks/stay"},
		{"networks stay after the release", func(s *nad.Store, _ *fake.Clientset) *wrongNetworks {
			return &wrongNetworks{Store: s, remove: func(context.Context, tenant.Allocation) error { return nil }}
		}, "networks/gone"},
	}
	outcomes := allAtOnce(t, len(tests), func(i int) (o outcome) {
		cluster := fake.NewSimpleClientset()
		e := engine.New(engine.Options{Networks: tests[i].networks(nad.New(cluster), cluster)})
		o.result, o.out, o.err = judged(t.Context(), t, e.Handler(), func(c *Config) { c.Networks = cluster })
		return o
	})
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.NoError(t, outcomes[i].err)
			assert.Equal(t, strings.Fields(test.wantBroken), outcomes[i].result.Failed, outcomes[i].out)
		})
	}
}

// wrongNetworks is a store with one half replaced.
type wrongNetworks struct {
	*nad.Store

	create, remove func(context.Context, tenant.Allocation) error
}

func (w *wrongNetworks) Create(ctx context.Context, a tenant.Allocation) error {
	if w.create == nil {
		return w.Store.Create(ctx, a)
	}
	return w.create(ctx, a)
}

func (w *wrongNetworks) Delete(ctx context.Context, a tenant.Allocation) error {
	if w.remove == nil {
		return w.Store.Delete(ctx, a)
	}
	return w.remove(ctx, a)
}

func spoil(ctx context.Context, cluster *fake.Clientset, a tenant.Allocation, change func(*metav1.ObjectMeta)) error {
	definitions := cluster.K8sCniCncfIoV1().NetworkAttachmentDefinitions(a.Namespace)
	for _, n := range a.Networks {
		d, err := definitions.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&d.ObjectMeta)
		if _, err := definitions.Update(ctx, d, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
