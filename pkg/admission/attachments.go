package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// absent is the version of the last successful read when the API server said that there is no such resource.
	absent atomic.Pointer[string]
}

// NewAttachmentWatcher returns a watcher, to be started.
func NewAttachmentWatcher(client metadata.Interface) (*AttachmentWatcher, error) {
	factory := metadatainformer.NewSharedInformerFactory(client, 0)
	informer := factory.ForResource(schema.GroupVersionResource{
		Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}).Informer()
	if err := informer.SetTransform(trimAttachment); err != nil {
		return nil, fmt.Errorf("watch of NetworkAttachmentDefinitions: %w", err)
	}
	w := &AttachmentWatcher{factory: factory, informer: informer}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) {
			w.absent.Store(new(informer.LastSyncResourceVersion()))
		}
		klog.FromContext(ctx).V(2).Info("NetworkAttachmentDefinitions are not watched, trying again; is Multus installed?", "err", err)
	})
	if err != nil {
		return nil, fmt.Errorf("watch of NetworkAttachmentDefinitions: %w", err)
	}
	return w, nil
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

// Ready is a readiness check: a replica that knows only some of the networks would let pass what it has to refuse.
func (w *AttachmentWatcher) Ready(*http.Request) error {
	if !w.informer.HasSynced() && !w.Absent() {
		return errors.New("NetworkAttachmentDefinitions are still being read")
	}
	return nil
}

// Absent tells whether the last look showed that the cluster has no CRD of NetworkAttachmentDefinitions.
func (w *AttachmentWatcher) Absent() bool {
	version := w.absent.Load()
	return version != nil && *version == w.informer.LastSyncResourceVersion()
}

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
