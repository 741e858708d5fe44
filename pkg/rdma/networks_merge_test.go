package rdma_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func vf(names ...string) []rdma.Attachment {
	var ours []rdma.Attachment
	for _, name := range names {
		ours = append(ours, rdma.Attachment{Namespace: "ns-a", Name: name})
	}
	return ours
}

func TestMergeNetworks(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		ours       []rdma.Attachment
		want       string
	}{
		{"nothing of ours changes nothing, not even broken text", " ,[", nil, " ,["},
		{"ours stand alone where the user wants none", "", vf("v1", "v2"), "ns-a/v1@rdma0,ns-a/v2@rdma1"},
		{"W1: the user's network is kept first", "macvlan-conf", vf("v1"), "macvlan-conf,ns-a/v1@rdma0"},
		{"the user's blanks are kept", " a , b@x ", vf("v1"), " a , b@x ,ns-a/v1@rdma0"},
		{
			"W2: the user's JSON is kept byte by byte", `[{"name":"a","mac":"00:11:22:33:44:55"}]`, vf("v1"),
			`[{"name":"a","mac":"00:11:22:33:44:55"},{"name":"v1","namespace":"ns-a","interface":"rdma0"}]`,
		},
		{
			"blanks, unknown keys, big numbers and HTML characters of JSON are kept", "\n[ {\"name\" : \"a\",\n \"x\":12345678901234567890, \"cni-args\":{\"y\":\"<&>\"}} ]\n", vf("v1"),
			"\n[ {\"name\" : \"a\",\n \"x\":12345678901234567890, \"cni-args\":{\"y\":\"<&>\"}} ,{\"name\":\"v1\",\"namespace\":\"ns-a\",\"interface\":\"rdma0\"}]\n",
		},
		{"an empty array stays JSON", "[ ]", vf("v1"), `[ {"name":"v1","namespace":"ns-a","interface":"rdma0"}]`},
		{"a bracket in the user's text is not the end of the array", `[{"name":"a","cni-args":{"x":"]"}}]`, vf("v1"), `[{"name":"a","cni-args":{"x":"]"}},{"name":"v1","namespace":"ns-a","interface":"rdma0"}]`},
		{"W3: ours takes no automatic name", "a@net2", vf("v1"), "a@net2,ns-a/v1@rdma0"},
		{"W6: JSON has the namespace in its own key, and the user's spelling is left alone", `[{"name":"ns/nad"}]`, vf("v1"), `[{"name":"ns/nad"},{"name":"v1","namespace":"ns-a","interface":"rdma0"}]`},
		{"the user's rdma names are skipped", "a@rdma0,b@rdma2", vf("v1", "v2"), "a@rdma0,b@rdma2,ns-a/v1@rdma1,ns-a/v2@rdma3"},
		{"the user's rdma name is skipped under the old key too", `[{"name":"a","interfaceRequest":"rdma0"}]`, vf("v1"), `[{"name":"a","interfaceRequest":"rdma0"},{"name":"v1","namespace":"ns-a","interface":"rdma1"}]`},
		{"a wish is granted, and a name wished further down is not given away", "", []rdma.Attachment{{Namespace: "ns-a", Name: "v1"}, {Namespace: "ns-a", Name: "v2", Interface: "rdma0"}}, "ns-a/v1@rdma1,ns-a/v2@rdma0"},
		{"a wish for the automatic name of its own place is granted", "a", []rdma.Attachment{{Namespace: "ns-a", Name: "v1", Interface: "net2"}}, "a,ns-a/v1@net2"},
		{"W7: a namespace left out is the pod's and written", "a", []rdma.Attachment{{Name: "v1"}}, "a,ns-a/v1@rdma0"},
		{"a dotted name of ours makes the empty text JSON", "", vf("v.1"), `[{"name":"v.1","namespace":"ns-a","interface":"rdma0"}]`},
		{"a dotted name of ours goes into JSON", "[]", vf("v.1"), `[{"name":"v.1","namespace":"ns-a","interface":"rdma0"}]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := rdma.MergeNetworks(tc.text, "ns-a", tc.ours)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
			if len(tc.ours) > 0 {
				assertDistinct(t, multusNames(t, got))
			}
		})
	}
}

func TestMergeNetworksRefuses(t *testing.T) {
	wish := func(iface string) []rdma.Attachment {
		return []rdma.Attachment{{Namespace: "ns-a", Name: "v1", Interface: iface}}
	}
	for _, tc := range []struct {
		name, text string
		ours       []rdma.Attachment
		want       string
	}{
		{"W4: an empty item must not be carried on", "a,b,", vf("v1"), "item 3"},
		{"W37: null must not be carried on", "[null]", vf("v1"), "must not be null"},
		{"the user's own clash must not be carried on", "a@net2,b", vf("v1"), `"net2" is taken`},
		{"the user's eth0 must not be carried on", "a@eth0", vf("v1"), `"eth0" is taken`},
		{"the user's interface that cannot be must not be carried on", `[{"name":"a","interface":"abcdefghijklmnop"}]`, vf("v1"), "at most 15 bytes"},
		{"a wish for the user's name must not be granted", "a@ib0", wish("ib0"), `wished interface "ib0" is taken`},
		{"a wish for the user's automatic name must not be granted", "a,b", wish("net2"), `wished interface "net2" is taken`},
		{"a wish for eth0 must not be granted", "", wish("eth0"), `wished interface "eth0" is taken`},
		{"a wish for lo must not be granted", "", wish("lo"), `wished interface "lo" is taken`},
		{"two wishes for one name must not be granted", "", append(wish("x"), wish("x")...), `wished interface "x" is taken`},
		{"a wish of sixteen bytes must not be granted", "", wish("abcdefghijklmnop"), "abcdefghijklmnop"},
		{"a wish that turns the text into JSON must not be granted", "", wish("a["), `wished interface "a["`},
		{"a wish with a comma must not be granted", "", wish("a,b"), `wished interface "a,b"`},
		{"a wish with an @ must not be granted", "", wish("a@b"), `wished interface "a@b"`},
		{"a network of ours without a name must not be written", "", vf(""), "the name is invalid"},
		{"a network of ours with a slash must not be written", "", vf("a/b"), "the name is invalid"},
		{"a network of ours with a comma must not be written", "", vf("a,b"), "the name is invalid"},
		{"a namespace of ours that cannot be must not be written", "", []rdma.Attachment{{Namespace: "a.b", Name: "v1"}}, "the namespace is invalid"},
		{"a dotted name of ours must not go into the short form", "a", vf("v.1"), "write the annotation as a JSON array"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := rdma.MergeNetworks(tc.text, "ns-a", tc.ours)
			require.ErrorContains(t, err, tc.want)
			assert.Empty(t, got)
		})
	}
}

func TestMergeNetworksLeavesItsArgumentsAlone(t *testing.T) {
	ours := []rdma.Attachment{{Name: "v1"}, {Namespace: "ns-a", Name: "v2"}}
	first, err := rdma.MergeNetworks("a", "ns-a", ours)
	require.NoError(t, err)
	assert.Equal(t, []rdma.Attachment{{Name: "v1"}, {Namespace: "ns-a", Name: "v2"}}, ours)
	second, err := rdma.MergeNetworks("a", "ns-a", ours)
	require.NoError(t, err)
	assert.Equal(t, first, second)
}

func TestStripNetworks(t *testing.T) {
	stale := func(n rdma.Network) bool { return n.Namespace == "ns-a" && n.Name == "stale" }
	for _, tc := range []struct {
		name, text, want string
		wantRemoved      bool
	}{
		{"no networks stay none", "", "", false},
		{"a text without stale networks is unchanged", " one , ns-b/stale@x ", " one , ns-b/stale@x ", false},
		{"JSON without stale networks is unchanged", "[ {\"name\":\"one\"} ]\n", "[ {\"name\":\"one\"} ]\n", false},
		{"an empty array is unchanged", "[]", "[]", false},
		{"stale items go and the others keep their text", " one , stale@rdma0,two@x ,ns-a/stale", " one ,two@x ", true},
		{"nothing but stale items leaves the empty text", "stale,ns-a/stale@rdma0", "", true},
		{"nothing but stale elements leaves the empty text", `[{"name":"stale"}]`, "", true},
		{"stale elements go and the others keep their bytes", `[ {"name":"stale"}, {"name":"a" , "x":"<&>"} ,{"name":"stale","namespace":"ns-b"}]`, `[{"name":"a" , "x":"<&>"},{"name":"stale","namespace":"ns-b"}]`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, removed, err := rdma.StripNetworks(tc.text, "ns-a", stale)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
			assert.Equal(t, tc.wantRemoved, removed)
		})
	}
	t.Run("a text that Multus refuses must not be cut", func(t *testing.T) {
		for _, text := range []string{"a,", "[null]", "[", " "} {
			_, removed, err := rdma.StripNetworks(text, "ns-a", stale)
			require.Error(t, err)
			assert.False(t, removed)
		}
	})
}

func TestStripNetworksUndoesMergeNetworks(t *testing.T) {
	ours := func(n rdma.Network) bool { return n.Name == "v1" || n.Name == "v2" }
	for _, text := range []string{"", "a", " a@x , ns-b/b", `[{"name":"a"},{"name":"b","x":1}]`} {
		merged, err := rdma.MergeNetworks(text, "ns-a", vf("v1", "v2"))
		require.NoError(t, err)
		stripped, removed, err := rdma.StripNetworks(merged, "ns-a", ours)
		require.NoError(t, err)
		assert.True(t, removed)
		assert.Equal(t, text, stripped)
	}
}

func TestOwnNetworksAreThoseThatWereMerged(t *testing.T) {
	assignment := rdma.Assignment{{Type: rdma.VF, Pool: "a.com/b", Count: 1}, {Type: rdma.PF, Pool: "a.com/c", Count: 1}}
	want := []rdma.Network{{Namespace: "ns-a", Name: "v1", Interface: "rdma0"}, {Namespace: "ns-a", Name: "v2", Interface: "rdma1"}}
	for name, user := range map[string]string{
		"without networks of the user":      "",
		"behind the user's":                 "a, ns-b/b@x",
		"behind the user's in JSON":         `[{"name":"a"}, {"name":"b","cni-args":{"x":[1,2]}}]`,
		"behind as many of the user's":      "a,b",
		"behind an empty array of the user": "[]",
	} {
		t.Run(name, func(t *testing.T) {
			merged, err := rdma.MergeNetworks(user, "ns-a", vf("v1", "v2"))
			require.NoError(t, err)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns-a", Annotations: map[string]string{rdma.NetworksAnnotation: merged}}}
			networks, err := rdma.OwnNetworks(pod, assignment)
			require.NoError(t, err)
			assert.Equal(t, want, networks.Elements())
			again, err := rdma.ParseNetworks(networks.String(), "ns-a")
			require.NoError(t, err)
			assert.Equal(t, want, again.Elements(), "its text alone says the same")
		})
	}
}

func TestMergedJSONHoldsTheUsersElementsUnchanged(t *testing.T) {
	const user = `{"name":"a","mac":"00:11:22:33:44:55"}`
	merged, err := rdma.MergeNetworks("["+user+"]", "ns-a", vf("v1"))
	require.NoError(t, err)
	var elements []json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(merged), &elements))
	require.Len(t, elements, 2)
	assert.Equal(t, user, string(elements[0])) //nolint:testifylint // byte by byte, not by meaning
}
