package rdma_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func poolOfVFs(namespace, nad string) (string, bool) {
	return "rdma/vf-pool", namespace == "ns-a" && nad == "vf-a"
}

func TestValidateUserNetworks(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"a list that works passes", "one,ns-b/two@ib0,three@net7", nil},
		{"a dotted name passes in JSON", `[{"name":"a.b","interface":"eth0.100"}]`, nil},
		{"an interface name that the client library would refuse passes", "one@IB_0", nil},
		{"an explicit name may be the automatic one of its own place", "one@net1,two", nil},
		{"net01 is not net1", "one,two@net01", nil},
		{"a network of another namespace with a pool's name passes", "ns-b/vf-a", nil},

		{"lo must not be asked for", "one@lo", []string{`interface "lo" must have another name`}},
		{"eth0 must not be asked for in JSON", `[{"name":"a","interface":"eth0"}]`, []string{`interface "eth0"`}},
		{"eth0 must not be asked for by the old key", `[{"name":"a","interfaceRequest":"eth0"}]`, []string{`interface "eth0"`}},
		{"a later automatic name must not be taken", "a@net3,b,c", []string{"item 1: interface \"net3\" must have another name: item 3"}},
		{"an earlier automatic name must not be taken", "a,b@net1", []string{"item 2: interface \"net1\" must have another name: item 1"}},
		{"white space must not be in a JSON interface name", `[{"name":"a","interface":"x y"}]`, []string{"white space"}},
		{"a no-break space must not be in an interface name", "a@x\u00a0y", []string{"white space"}},
		{"a slash must not be in a JSON interface name", `[{"name":"a","interface":"x/y"}]`, []string{"white space, '/'"}},
		{"a colon must not be in an interface name", "a@x:y", []string{"':'"}},
		{"a pattern of the kernel's must not be an interface name", "a@rdma%d", []string{"'%'"}},
		{"a zero byte must not be in an interface name", `[{"name":"a","interface":"eth0\u0000"}]`, []string{"zero byte"}},
		{"a dot must not be an interface name", "a@.", []string{"'.' or '..'"}},
		{"two dots must not be an interface name", `[{"name":"a","interface":".."}]`, []string{"'.' or '..'"}},
		{"eight letters of two bytes must not be an interface name", "a@éééééééé", []string{"at most 15 bytes"}},
		{"upper case must not be in a JSON name", `[{"name":"One"}]`, []string{`name "One"`}},
		{"a namespace that cannot be must not pass", `[{"name":"a","namespace":"ns.b"}]`, []string{`namespace "ns.b"`}},
		{"a name that is too long must not pass", strings.Repeat("a", 254), []string{"253"}},
		{"a namespace that is too long must not pass", strings.Repeat("n", 64) + "/a", []string{"63"}},
		{"a deviceID must not pass in any spelling", `[{"name":"a","DEVICEID":"x"}]`, []string{`deviceID "x"`}},
		{"a network that takes a pool's device must not pass", "vf-a", []string{`network ns-a/vf-a takes a device of the pool "rdma/vf-pool"`}},
		{"a network that takes a pool's device must not pass with its namespace", "one,ns-a/vf-a@x", []string{"item 2, \"ns-a/vf-a@x\": network ns-a/vf-a"}},
		{"as many networks as a pod may have pass", strings.TrimSuffix(strings.Repeat("one,", 32), ","), nil},
		{"one network more than a pod may have must not pass", strings.TrimSuffix(strings.Repeat("one,", 33), ","), []string{"must name at most 32 networks, not 33"}},
		{"W37: null must not pass", "[null]", []string{"must not be null"}},

		{
			"all faults come at once, in their order",
			`[null,{"name":"vf-a","deviceID":"d","interface":"eth0"},{},{"name":"a/b","interface":"..","namespace":"B"},{"name":"c","interface":"net5"},{"name":"d","interface":"net5"}]`,
			[]string{
				"item 1: must not be null",
				`deviceID "d"`, `pool "rdma/vf-pool"`, `interface "eth0"`,
				`item 3: must have a "name"`,
				`item 4: name "a/b"`, `item 4: namespace "B"`, `item 4: interface ".."`,
				`item 6: interface "net5"`,
			},
		},
		{"faults of too many networks are not looked for", strings.Repeat("One,", 40), []string{"must name at most 32 networks, not 41"}},
		{"all faults of the short form come at once", ",One,a@b@c,b@" + strings.Repeat("x", 16), []string{"item 1: ", "item 2: ", "item 3: ", "item 4: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := rdma.ValidateUserNetworks(networksPath, tc.text, "ns-a", poolOfVFs)
			require.Len(t, errs, len(tc.want), "%v", errs)
			for i, want := range tc.want {
				assert.Contains(t, errs[i].Error(), want)
				assert.Equal(t, networksPath.String(), errs[i].Field)
			}
			assert.Equal(t, errs, rdma.ValidateUserNetworks(networksPath, tc.text, "ns-a", poolOfVFs), "the order is stable")
		})
	}
}

func TestValidateUserNetworksAnswersAFloodOfFaultsBriefly(t *testing.T) {
	errs := rdma.ValidateUserNetworks(networksPath, strings.Repeat(",", 31), "ns-a", nil)
	require.Len(t, errs, 17)
	assert.Contains(t, errs[16].Error(), "and 16 faults more")
	assert.Less(t, len(errs.ToAggregate().Error()), 10_000)
	errs = rdma.ValidateUserNetworks(networksPath, strings.Repeat(",", 200_000), "ns-a", nil)
	require.Len(t, errs, 1)
	assert.Less(t, len(errs.ToAggregate().Error()), 1_000)
}

func TestValidateDefaultNetwork(t *testing.T) {
	path := field.NewPath("metadata", "annotations").Key(rdma.DefaultNetworkAnnotation)
	poolOf := func(namespace, nad string) (string, bool) {
		return "rdma/vf-pool", namespace == "kube-system" && nad == "vf"
	}
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"one network passes", "calico", nil},
		{"one network passes in JSON", `[{"name":"calico","namespace":"ns-a"}]`, nil},
		{"eth0 may be written out", "calico@eth0", nil},
		{"the same name in another namespace feeds from no pool", "ns-a/vf", nil},

		{"an empty text must not pass", "", []string{"exactly one network, not 0"}},
		{"a blank text must not pass", " ", []string{"must not be blank"}},
		{"an empty array, on which Multus panics, must not pass", "[]", []string{"exactly one network, not 0"}},
		{"null must not pass", "[null]", []string{"must not be null"}},
		{"two networks must not pass", "a,b", []string{"exactly one network, not 2"}},
		{"broken JSON must not pass", "[{", []string{"not valid JSON"}},
		{"another interface name must not pass", "calico@rdma0", []string{`interface "rdma0" must be left out`}},
		{"a deviceID must not pass", `[{"name":"a","deviceID":"d"}]`, []string{`deviceID "d"`}},
		{"a network of a pool must not pass, found in Multus' own namespace", "vf", []string{`network kube-system/vf takes a device of the pool`}},
		{"a network of a pool must not pass in JSON", `[{"name":"vf","namespace":"kube-system"}]`, []string{`pool "rdma/vf-pool"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs := rdma.ValidateDefaultNetwork(path, tc.text, "kube-system", poolOf)
			require.Len(t, errs, len(tc.want), "%v", errs)
			for i, want := range tc.want {
				assert.Contains(t, errs[i].Error(), want)
			}
		})
	}
}
