package admission

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// AttachmentWatcher knows the NetworkAttachmentDefinitions of the cluster by their metadata. A cluster without that CRD
// is a cluster without networks to mistake: the watcher goes on trying, with the reflector's backoff, and finds nothing.
type AttachmentWatcher struct {
	factory  metadatainformer.SharedInformerFactory
	informer cache.SharedIndexInformer
}

// NewAttachmentWatcher returns a watcher, to be started.
func NewAttachmentWatcher(client metadata.Interface) (*AttachmentWatcher, error) {
	factory := metadatainformer.NewSharedInformerFactory(client, 0)
	informer := factory.ForResource(schema.GroupVersionResource{
		Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}).Informer()
	if err := informer.SetTransform(trimAttachment); err != nil {
		return nil, fmt.Errorf("watch of NetworkAttachmentDefinitions: %w", err)
	}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).V(2).Info("NetworkAttachmentDefinitions are not watched, trying again; is Multus installed?", "err", err)
	})
	if err != nil {
		return nil, fmt.Errorf("watch of NetworkAttachmentDefinitions: %w", err)
	}
	return &AttachmentWatcher{factory: factory, informer: informer}, nil
}

// Start watches until ctx ends.
func (w *AttachmentWatcher) Start(ctx context.Context) error {
	w.factory.Start(ctx.Done())
	<-ctx.Done()
	w.factory.Shutdown()
	return nil
}

// NeedLeaderElection tells controller-runtime that every replica watches.
func (w *AttachmentWatcher) NeedLeaderElection() bool { return false }

// Lookup is the Injector's Attachments.
func (w *AttachmentWatcher) Lookup(namespace, name string) (Attachment, bool) {
	synced := w.informer.HasSynced() // before the store is read: what is missing then was missing at the sync
	object, ok, err := w.informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return Attachment{Missing: synced}, synced
	}
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return Attachment{}, false
	}
	return Attachment{Pool: meta.Annotations[rdma.ResourceNameAnnotation], PodUID: meta.Labels[rdma.PodUIDLabel]}, true
}

func trimAttachment(object any) (any, error) {
	meta, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	trimmed := &metav1.PartialObjectMetadata{TypeMeta: meta.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion}}
	if uid, ok := meta.Labels[rdma.PodUIDLabel]; ok {
		trimmed.Labels = map[string]string{rdma.PodUIDLabel: uid}
	}
	if pool, ok := meta.Annotations[rdma.ResourceNameAnnotation]; ok {
		trimmed.Annotations = map[string]string{rdma.ResourceNameAnnotation: pool}
	}
	return trimmed, nil
}
