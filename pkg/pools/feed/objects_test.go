package feed

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	poolA = corev1.ResourceName("a.com/vf")
	poolB = corev1.ResourceName("b.com/vf")
)

func resources(pool corev1.ResourceName, count int64) corev1.ResourceList {
	return corev1.ResourceList{pool: *resource.NewQuantity(count, resource.DecimalSI)}
}

func node(name string, pool corev1.ResourceName, count int64) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Status: corev1.NodeStatus{
		Allocatable: resources(pool, count), Capacity: resources(pool, count),
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func pod(name, uid, nodeName string, pool corev1.ResourceName, count int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), Finalizers: []string{rdma.Finalizer},
		Annotations: rdma.Assignment{{Type: rdma.VF, Pool: pool, Count: count}}.Annotations()}}
	p.Spec.NodeName = nodeName
	p.Spec.Containers = []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Requests: resources(pool, count)}}}
	return p
}

func config(t testing.TB, policy string) *pools.Config {
	t.Helper()
	cfg, err := pools.ParseConfig(map[string]string{pools.PoolsKey: "a.com/vf\nb.com/vf", pools.PolicyKey: policy})
	require.NoError(t, err)
	return cfg
}

// sources is a cache of real informers over lists that the test changes.
type sources struct {
	ctrlcache.Cache
	nodes, pods                 *fcache.FakeControllerSource
	nodesInformer, podsInformer cache.SharedIndexInformer
}

func newSources() *sources {
	s := &sources{nodes: fcache.NewFakeControllerSource(), pods: fcache.NewFakeControllerSource()}
	s.nodesInformer = cache.NewSharedIndexInformer(s.nodes, &corev1.Node{}, 0, cache.Indexers{})
	s.podsInformer = cache.NewSharedIndexInformer(s.pods, &corev1.Pod{}, 0, cache.Indexers{})
	return s
}

func (s *sources) start(ctx context.Context) {
	go s.nodesInformer.RunWithContext(ctx)
	go s.podsInformer.RunWithContext(ctx)
}

func (s *sources) GetInformer(_ context.Context, object client.Object, _ ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	switch object.(type) {
	case *corev1.Node:
		return s.nodesInformer, nil
	case *corev1.Pod:
		return s.podsInformer, nil
	}
	return nil, fmt.Errorf("no informer of %T", object)
}

func (s *sources) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	switch list := into.(type) {
	case *corev1.NodeList:
		for _, object := range s.nodesInformer.GetStore().List() {
			list.Items = append(list.Items, *object.(*corev1.Node))
		}
	case *corev1.PodList:
		for _, object := range s.podsInformer.GetStore().List() {
			list.Items = append(list.Items, *object.(*corev1.Pod))
		}
	}
	return nil
}

// output is a log that can be read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) logger() klog.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(o)))
}
