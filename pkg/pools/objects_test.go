package pools

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
)

const (
	sriov  = corev1.ResourceName("mellanox.com/mlnx_sriov_rdma")
	hca    = corev1.ResourceName("rdma/hca_shared_devices_a")
	pfPool = corev1.ResourceName("mellanox.com/mlnx_pf_rdma")
	gpu    = corev1.ResourceName("nvidia.com/gpu")
)

func list(pairs ...any) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(corev1.ResourceName)
		if !ok {
			name = corev1.ResourceName(pairs[i].(string))
		}
		l[name] = *resource.NewQuantity(int64(pairs[i+1].(int)), resource.DecimalSI)
	}
	return l
}

// node returns a Ready node that offers the given numbers of devices.
func node(name string, pairs ...any) *corev1.Node {
	resources := list(pairs...)
	resources[corev1.ResourceCPU] = resource.MustParse("64")
	resources[corev1.ResourceMemory] = resource.MustParse("512Gi")
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1", Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: resources, Capacity: resources.DeepCopy(),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// pod returns a pod that requests the given numbers of devices; an empty node means that it is not bound.
func pod(uid, nodeName string, pairs ...any) *corev1.Pod {
	requests := list(pairs...)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: uid, UID: types.UID(uid)},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "app",
			Resources: corev1.ResourceRequirements{Requests: requests, Limits: requests}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// injected makes a pod look as admission leaves it, with one device of a pool.
func injected(uid, nodeName, id string, pool corev1.ResourceName) *corev1.Pod {
	p := pod(uid, nodeName, pool, 1)
	p.Finalizers = []string{rdma.Finalizer}
	p.Annotations = rdma.Assignment{{Type: rdma.VF, Pool: pool, Count: 1}}.Annotations()
	p.Annotations[rdma.AdmissionIDAnnotation] = id
	return p
}

func deleting(p *corev1.Pod) *corev1.Pod {
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	return p
}

func mustConfig(lines string, policy ...string) *Config {
	data := map[string]string{PoolsKey: lines}
	if len(policy) > 0 {
		data[PolicyKey] = policy[0]
	}
	cfg, err := ParseConfig(data)
	if err != nil {
		panic(err)
	}
	return cfg
}

func set(l *Ledger, objects ...any) {
	for _, object := range objects {
		switch o := object.(type) {
		case *corev1.Node:
			l.SetNode(o)
		case *corev1.Pod:
			if charge, ok := ChargeOf(o, mustConfig("a.com/b").Policy); ok {
				l.SetPod(charge)
			} else {
				l.DeletePod(o.UID)
			}
		}
	}
}

func vf(count int64) rdma.Intent { return rdma.Intent{{Type: rdma.VF, Count: count}} }

// demand is an admission of a plain pod; n makes its id.
func demand(n int, intent rdma.Intent) Demand {
	return Demand{Intent: intent, Pod: pod("new", ""), AdmissionID: "id" + strconv.Itoa(n)}
}
