package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// signature is what this plugin's Filter and Score depend on. The namespace stands for the tenant.
type signature struct {
	Namespace  string
	Assignment rdma.Assignment
}

// SignPod lets the scheduler place pods that are alike in batches. Without it batching would be off for every pod of
// the profile. What PreFilter looks at, groups and breakers, does not depend on nodes and is looked at for each pod.
func (p *TenantNetwork) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	assignment, ours := rdma.Ours(pod)
	if !ours {
		return nil, nil
	}
	return []fwk.SignFragment{{Key: Name, Value: signature{Namespace: pod.Namespace, Assignment: assignment}}}, nil
}
