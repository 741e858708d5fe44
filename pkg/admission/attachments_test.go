package admission

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatafake "k8s.io/client-go/metadata/fake"
)

var attachments = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

func TestAttachmentWatcherKnowsWhatFeedsANetwork(t *testing.T) {
	scheme := metadatafake.NewTestScheme()
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	client := metadatafake.NewSimpleMetadataClient(scheme)
	nad := func(namespace, name string, annotations, labels map[string]string) {
		creator, ok := client.Resource(attachments).Namespace(namespace).(metadatafake.MetadataClient)
		require.True(t, ok)
		_, err := creator.CreateFake(&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "k8s.cni.cncf.io/v1", Kind: "NetworkAttachmentDefinition"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations, Labels: labels}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	nad("a", "plain", map[string]string{"x": "y"}, nil)
	nad("a", "ours", map[string]string{"k8s.v1.cni.cncf.io/resourceName": "a.com/vf"}, map[string]string{"tenant.network/pod-uid": "uid", "x": "y"})
	nad("b", "plain", map[string]string{"k8s.v1.cni.cncf.io/resourceName": "b.com/vf"}, nil)
	watcher, err := NewAttachmentWatcher(client)
	require.NoError(t, err)
	_, known := watcher.Lookup("a", "ours")
	require.False(t, known, "nothing is known before the start")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watcher.Start(ctx) }()
	require.Eventually(t, watcher.informer.HasSynced, 20*time.Second, time.Millisecond)
	for _, tc := range []struct {
		namespace, name string
		want            Attachment
		known           bool
	}{
		{"a", "plain", Attachment{}, true},
		{"a", "ours", Attachment{Pool: "a.com/vf", PodUID: "uid"}, true},
		{"b", "plain", Attachment{Pool: "b.com/vf"}, true},
		{"b", "ours", Attachment{Missing: true}, true},
		{"", "plain", Attachment{Missing: true}, true},
	} {
		got, known := watcher.Lookup(tc.namespace, tc.name)
		assert.Equal(t, tc.known, known, "%s/%s", tc.namespace, tc.name)
		assert.Equal(t, tc.want, got)
	}
	assert.False(t, watcher.NeedLeaderElection())
	cancel()
	require.NoError(t, <-done)
}
