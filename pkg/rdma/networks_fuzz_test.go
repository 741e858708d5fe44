package rdma_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func FuzzParseNetworks(f *testing.F) {
	for _, row := range multusRows {
		f.Add(row.text)
	}
	for _, text := range []string{
		"a@net2,b", "/a,b@,c", "a/b/c", "a@b@c", "a@x:y", "a@é ", `[{"NAME":"a","interfaceRequest":"net1"}]`,
		`[{"name":"a","ips":["10.1.1.1/24"],"default-route":[""],"cni-args":null}]`, `[[[`, `[1e999]`, "[\x00\xff]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		networks, err := rdma.ParseNetworks(text, "ns-a")
		refusals := rdma.ValidateUserNetworks(networksPath, text, "ns-a", poolOfVFs)
		_ = rdma.ValidateDefaultNetwork(networksPath, text, "kube-system", poolOfVFs)
		if err != nil {
			assert.NotEmpty(t, refusals, "what cannot be read is refused")
			assert.Zero(t, networks.Len())
			return
		}
		assert.Equal(t, text, networks.String())
		names := multusNames(t, text)
		require.Len(t, names, networks.Len())
		for _, network := range networks.Elements() {
			assert.NotEmpty(t, network.Name)
			assert.NotEmpty(t, network.Namespace)
		}
		if len(refusals) == 0 {
			assertDistinct(t, names)
		}

		stripped, removed, err := rdma.StripNetworks(text, "ns-a", func(n rdma.Network) bool { return n.Interface == "" })
		require.NoError(t, err)
		assert.Equal(t, removed, stripped != text)
		rest, err := rdma.ParseNetworks(stripped, "ns-a")
		require.NoError(t, err)
		var want []rdma.Network
		for _, network := range networks.Elements() {
			if network.Interface != "" {
				want = append(want, network)
			}
		}
		assert.ElementsMatch(t, want, rest.Elements())
	})
}

func FuzzMergeNetworks(f *testing.F) {
	for _, row := range multusRows {
		f.Add(row.text, "ns-a", "vf-1", "", "vf-2", "")
		f.Add(row.text, "", "vf-1", "net2", "vf.2", "rdma0")
	}
	f.Add("a@rdma0,b@rdma1", "ns-b", "vf-1", "ib,0", "vf-2", "a[")
	f.Fuzz(func(t *testing.T, text, namespace, first, firstInterface, second, secondInterface string) {
		ours := []rdma.Attachment{
			{Namespace: namespace, Name: first, Interface: firstInterface},
			{Namespace: namespace, Name: second, Interface: secondInterface},
		}
		valid := len(rdma.ValidateUserNetworks(networksPath, text, "ns-a", nil)) == 0
		if valid {
			plain, err := rdma.MergeNetworks(text, "ns-a", vf("vf-1", "vf-2"))
			require.NoError(t, err, "a list that admission let in can be merged")
			assertMerged(t, text, plain, vf("vf-1", "vf-2"))
		}
		merged, err := rdma.MergeNetworks(text, "ns-a", ours)
		if err != nil {
			assert.Empty(t, merged)
			return
		}
		assertMerged(t, text, merged, ours)
		if all, err := rdma.ParseNetworks(merged, "ns-a"); valid && err == nil && all.Len() <= 32 {
			assert.Empty(t, rdma.ValidateUserNetworks(networksPath, merged, "ns-a", nil), "ours are held to the user's rules")
		}
	})
}

// assertMerged holds for every merge that succeeded.
func assertMerged(t *testing.T, text, merged string, ours []rdma.Attachment) {
	t.Helper()
	user, err := rdma.ParseNetworks(text, "ns-a")
	require.NoError(t, err)
	all, err := rdma.ParseNetworks(merged, "ns-a")
	require.NoError(t, err)
	require.Equal(t, user.Len()+len(ours), all.Len())
	elements := all.Elements()
	assert.Equal(t, user.Elements(), elements[:user.Len()])
	for i, attachment := range ours {
		got := elements[user.Len()+i]
		assert.Equal(t, attachment.Name, got.Name)
		assert.NotEmpty(t, got.Interface)
		if attachment.Namespace != "" {
			assert.Equal(t, attachment.Namespace, got.Namespace)
		}
		if attachment.Interface != "" {
			assert.Equal(t, attachment.Interface, got.Interface)
		}
	}
	assertDistinct(t, multusNames(t, merged))

	kept := text
	if strings.ContainsAny(text, `[{"`) {
		kept = strings.TrimRight(strings.TrimSpace(text), "]")
	}
	assert.True(t, strings.HasPrefix(strings.TrimSpace(merged), strings.TrimSpace(kept)), "the user's bytes come first")
}
