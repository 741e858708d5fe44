package admission

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func TestNetworksMadeForAnotherPodAreLeftOut(t *testing.T) {
	for name, tc := range map[string]struct {
		// count is the copied annotation that says how many networks the other pod was given; it had been running.
		count, networks string
		pending         bool
		unsynced        bool
		want            string
		warning         string
	}{
		"those that still exist, wherever they stand": {networks: "tenant-a/stale@rdma0,mine", want: "mine",
			warning: "metadata.annotations[k8s.v1.cni.cncf.io/networks]: left out what was made for another pod: tenant-a/stale"},
		"those that are gone, by their place": {count: "2", networks: "mine,tenant-b/gone-0@rdma0,tenant-b/gone-1@rdma1", want: "mine",
			warning: "metadata.annotations[k8s.v1.cni.cncf.io/networks]: left out what was made for another pod: tenant-b/gone-0, tenant-b/gone-1"},
		"those that are gone, of both types": {count: "1,1", networks: `[{"name":"mine","x":1},{"name":"gone-0","namespace":"tenant-a","interface":"rdma0"},{"name":"gone-1","namespace":"tenant-a","interface":"rdma1"}]`,
			want:    `[{"name":"mine","x":1}]`,
			warning: "metadata.annotations[k8s.v1.cni.cncf.io/networks]: left out what was made for another pod: tenant-a/gone-0, tenant-a/gone-1"},
		"all of them": {count: "1", networks: "tenant-a/gone@rdma0",
			warning: "metadata.annotations[k8s.v1.cni.cncf.io/networks]: left out what was made for another pod: tenant-a/gone"},

		"a missing network must stay where the other pod had not been bound, or this is a second pass": {count: "1", networks: "mine,gone@rdma0", want: "mine,gone@rdma0", pending: true},
		"a missing network must stay where nothing says that the pod is a copy":                        {networks: "mine,gone@rdma0", want: "mine,gone@rdma0"},
		"a missing network that stands before the claimed ones must stay":                              {count: "1", networks: "gone@x,tenant-a/mine@y", want: "gone@x,tenant-a/mine@y"},
		"a network that exists and was made for nobody must stay":                                      {count: "1", networks: "one@x,mine@y", want: "one@x,mine@y"},
		"a missing network without an interface name, which ours always have, stays":                   {count: "1", networks: "mine,gone", want: "mine,gone"},
		"a missing network must stay while the networks of the cluster are not known":                  {count: "1", networks: "mine,gone@rdma0", want: "mine,gone@rdma0", unsynced: true},
		"a claim that is no number must not be believed":                                               {count: "1,x", networks: "mine,gone@rdma0", want: "mine,gone@rdma0"},
		"a negative claim must not be believed":                                                        {count: "-1", networks: "mine,gone@rdma0", want: "mine,gone@rdma0"},
	} {
		t.Run(name, func(t *testing.T) {
			injector, _ := newInjector(t)
			if all := injector.Attachments; tc.unsynced {
				injector.Attachments = func(namespace, name string) (Attachment, bool) {
					a, _ := all(namespace, name)
					return a, !a.Missing
				}
			}
			pod := podFrom(t, plain)
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, rdma.NetworksAnnotation, tc.networks)
			if !tc.pending {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, rdma.NetworkStatusAnnotation, "[]")
			}
			if tc.count != "" {
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, rdma.ResourceCountAnnotation, tc.count)
			}
			result, errs := injector.Inject(pod, "tenant-a", false)
			require.Empty(t, errs)
			admitted := apply(t, pod, result.Pod)
			got, has := admitted.Annotations[rdma.NetworksAnnotation]
			assert.Equal(t, tc.want, got)
			assert.NotContains(t, admitted.Annotations, rdma.NetworkStatusAnnotation)
			assert.Equal(t, tc.want != "", has)
			if tc.warning == "" {
				assert.Empty(t, result.Warnings)
			} else {
				assert.Equal(t, []string{tc.warning}, result.Warnings)
			}
			again, errs := injector.Inject(admitted, "tenant-a", false)
			require.Empty(t, errs)
			require.Empty(t, patch(admitted, again.Pod), "a second pass must change nothing")
		})
	}
}

func TestTheWarningAboutACopyIsShort(t *testing.T) {
	injector, _ := newInjector(t)
	pod := podFrom(t, plain)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, rdma.NetworksAnnotation, strings.TrimSuffix(strings.Repeat("tenant-a/stale,", 5000), ","))
	result, errs := injector.Inject(pod, "tenant-a", false)
	require.Empty(t, errs)
	require.Len(t, result.Warnings, 1)
	assert.Less(t, len(result.Warnings[0]), 300)
}
