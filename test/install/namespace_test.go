package install

import (
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// optIn makes the tenant's namespace and waits until pods may come. Its label is there from the start: of one that comes
// later the API server may not know yet, and the first pod would go past the webhook. For the service account, which each
// pod needs, the API server waits less long than a busy controller manager takes.
func (w *world) optIn() {
	w.t.Helper()
	w.do(`kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Namespace
metadata: {name: tenant-a, labels: {rdma-type: vpc}}
EOF`)
	// A count of 0 is refused by the webhook and by nobody else.
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe", Annotations: map[string]string{rdma.VFAnnotation: "0"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		_, err := w.client.CoreV1().ServiceAccounts("tenant-a").Get(w.t.Context(), "default", metav1.GetOptions{})
		require.NoError(c, err)
		_, err = w.client.CoreV1().Pods("tenant-a").Create(w.t.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.ErrorContains(c, err, rdma.VFAnnotation)
	}, patience, 50*time.Millisecond)
}

// apply applies files with pods of the tenant's namespace, which one of them may make: a user whose pod comes too early
// applies the file again.
func (w *world) apply(files ...string) {
	w.t.Helper()
	w.optIn()
	w.do("kubectl apply -f " + strings.Join(files, " -f "))
}
