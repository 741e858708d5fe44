package conformance

import (
	"context"
	"strings"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/rdma"
	"tenant.network/tenant-webhook/pkg/tenant"
)

const networksExist = "networks/exist"

var networkClauses = []Clause{
	{ID: networksExist, Sentence: "Each network is a NetworkAttachmentDefinition with the pod's UID and its pool, before it is in an answer.", needs: []string{makes}, inCluster: true, check: networksAreThere},
	{ID: "networks/stay", Sentence: "A repeated ensure and a move leave the NetworkAttachmentDefinitions as they are.", needs: []string{networksExist, moves}, inCluster: true, check: networksStay},
	{ID: "networks/refused", Sentence: "A refused ensure makes no NetworkAttachmentDefinition.", needs: []string{networksExist, "invalid/requests"}, inCluster: true, check: networksRefused},
	{ID: "networks/gone", Sentence: "The networks are deleted before a release is answered.", needs: []string{networksExist, releases}, inCluster: true, check: networksGone},
}

// sharedPrefix is that of pools whose device is a token; their networks carry no resource name.
const sharedPrefix = "rdma/"

func (r *run) definition(ctx context.Context, n tenant.Network) (*netv1.NetworkAttachmentDefinition, error) {
	return r.config.Networks.K8sCniCncfIoV1().NetworkAttachmentDefinitions(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
}

// definitions wants all of them to be there, as the contract has them, and returns their own UIDs.
func (p *pod) definitions(ctx context.Context, networks []tenant.Network) []types.UID {
	var uids []types.UID
	for _, n := range networks {
		d, err := p.run.definition(ctx, n)
		if err != nil {
			failf("network %s/%s: %v", n.Namespace, n.Name, err)
		}
		if got := d.Labels[rdma.PodUIDLabel]; got != string(p.uid) {
			failf("network %s/%s: label %s is %q; want %q", n.Namespace, n.Name, rdma.PodUIDLabel, got, p.uid)
		}
		want := n.Pool
		if strings.HasPrefix(n.Pool, sharedPrefix) {
			want = ""
		}
		if got := d.Annotations[rdma.ResourceNameAnnotation]; got != want {
			failf("network %s/%s: annotation %s is %q; want %q", n.Namespace, n.Name, rdma.ResourceNameAnnotation, got, want)
		}
		uids = append(uids, d.UID)
	}
	return uids
}

func networksAreThere(ctx context.Context, r *run) {
	p := r.newPod()
	p.ask.Requests = r.requests(2)
	p.definitions(ctx, p.ensure(ctx).Networks)
}

func networksStay(ctx context.Context, r *run) {
	p := r.newPod()
	first := p.ensure(ctx)
	before := asJSON(p.definitions(ctx, first.Networks))
	p.ensure(ctx)
	p.ensure(ctx, p.moved(), withGeneration(first.Generation))
	if after := asJSON(p.definitions(ctx, first.Networks)); after != before {
		failf("the objects' UIDs are %s; want %s, those before the ensures", after, before)
	}
}

func networksRefused(ctx context.Context, r *run) {
	p := r.newPod()
	p.put(ctx, func(a *tenant.EnsureRequest) { a.Requests[len(a.Requests)-1].Count = 0 })
	p.put(ctx, withGeneration(7))
	found, err := r.config.Networks.K8sCniCncfIoV1().NetworkAttachmentDefinitions(r.config.Namespace).
		List(ctx, metav1.ListOptions{LabelSelector: rdma.PodUIDLabel + "=" + string(p.uid)})
	if err != nil {
		failf("listing networks: %v", err)
	}
	if len(found.Items) > 0 {
		failf("network %s/%s was made for a refused ensure", found.Items[0].Namespace, found.Items[0].Name)
	}
}

func networksGone(ctx context.Context, r *run) {
	p := r.newPod()
	got := p.ensure(ctx)
	released(p.del(ctx))
	for _, n := range got.Networks {
		if d, err := r.definition(ctx, n); err == nil {
			failf("network %s/%s is still there, deletionTimestamp %v", n.Namespace, n.Name, d.DeletionTimestamp)
		} else if !apierrors.IsNotFound(err) {
			failf("network %s/%s: %v", n.Namespace, n.Name, err)
		}
	}
}
