package rdma_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"tenant.network/tenant-webhook/pkg/rdma"
)

var networksPath = field.NewPath("metadata", "annotations").Key(rdma.NetworksAnnotation)

// observed is one input that the real Multus was run with; names and refusals are what it did, not what we think.
type observed struct {
	row  int
	name string
	text string
	// wantNames are the interfaces that Multus made besides eth0.
	wantNames []string
	// wantParseError and wantRefusal are parts of the messages of ParseNetworks and ValidateUserNetworks.
	wantParseError string
	wantRefusal    string
}

// multusRows are the rows about text, 1-36, 54 and 55, of the table of behaviour observed in Multus v4.3.0. A missing
// NetworkAttachmentDefinition is good text. Rows 21, 32, 35 and 36 repeat the texts of 20, 31 and 34 in another cluster.
var multusRows = []observed{
	{row: 1, name: "no annotation has no networks", text: ""},
	{row: 2, name: "short form with one network is net1", text: "one", wantNames: []string{"net1"}},
	{row: 3, name: "two networks are net1 and net2", text: "one,two", wantNames: []string{"net1", "net2"}},
	{row: 4, name: "the same network twice is two interfaces", text: "one,one", wantNames: []string{"net1", "net2"}},
	{row: 5, name: "blanks around items do not matter", text: "ns-a/one , two", wantNames: []string{"net1", "net2"}},
	{row: 6, name: "an explicit name after an automatic one is kept", text: "user,one@rdma0", wantNames: []string{"net1", "rdma0"}},
	{row: 7, name: "an explicit name does not shift automatic ones", text: "one@rdma0,user", wantNames: []string{"rdma0", "net2"}},
	{row: 8, name: "JSON names interfaces like the short form", text: `[{"name":"one"},{"name":"two","namespace":"ns-a","interface":"rdma0"}]`, wantNames: []string{"net1", "rdma0"}},
	{row: 9, name: "JSON may ask for a MAC", text: `[{"name":"mac","mac":"02:00:00:00:00:0a"}]`, wantNames: []string{"net1"}},
	{row: 10, name: "JSON may ask for a MAC that the network cannot give", text: `[{"name":"one","mac":"02:00:00:00:00:0a"}]`, wantNames: []string{"net1"}},
	{row: 11, name: "an empty JSON array has no networks", text: `[]`},
	{row: 12, name: "an automatic name must not collide with an explicit one", text: "one@net2,two", wantRefusal: `item 1: interface "net2" must have another name: item 2 has that name already`},
	{row: 13, name: "an explicit name must not be given twice", text: "one@x,two@x", wantRefusal: `item 2: interface "x" must have another name: item 1 has that name already`},
	{row: 14, name: "eth0 must not be asked for", text: "one@eth0", wantRefusal: `interface "eth0" must have another name`},
	{row: 15, name: "fifteen bytes are a good interface name", text: "one@abcdefghijklmno", wantNames: []string{"abcdefghijklmno"}},
	{row: 16, name: "sixteen bytes must not pass in the short form", text: "one@abcdefghijklmnop", wantParseError: "at most 15 bytes", wantRefusal: "at most 15 bytes"},
	{row: 17, name: "sixteen bytes must not pass in JSON, where Multus parses them", text: `[{"name":"one","interface":"abcdefghijklmnop"}]`, wantRefusal: "at most 15 bytes long, not 16"},
	{row: 18, name: "a trailing comma must not pass", text: "one,two,", wantParseError: `item 3, "": must not be empty`, wantRefusal: "item 3: must not be empty"},
	{row: 19, name: "a blank must not pass", text: " ", wantParseError: `networks " ": must not be blank`, wantRefusal: "must not be blank"},
	{row: 20, name: "null must not pass", text: `[null]`, wantParseError: `item 1, "null": must not be null`, wantRefusal: "item 1: must not be null"},
	{row: 22, name: "null after a good element must not pass", text: `[{"name":"one"},null]`, wantParseError: `item 2, "null": must not be null`, wantRefusal: "item 2: must not be null"},
	{row: 23, name: "an element without a name must not pass", text: `[{}]`, wantParseError: `item 1, "{}": must have a "name"`, wantRefusal: `item 1: must have a "name"`},
	{row: 24, name: "JSON cut short must not pass", text: `[{"name":"one"}`, wantParseError: "not valid JSON at byte 15", wantRefusal: "not valid JSON at byte 15"},
	{row: 25, name: "an object instead of an array must not pass", text: `{"name":"one"}`, wantParseError: "must be a JSON array, not a JSON object", wantRefusal: "must be a JSON array, not a JSON object"},
	{row: 26, name: "the forms must not be mixed", text: `one,[{"name":"two"}]`, wantParseError: `not valid JSON at byte 1, near "one,[{\"name\":\"two\"}]"`, wantRefusal: "not valid JSON at byte 1"},
	{row: 27, name: "a JSON name must not hold a namespace", text: `[{"name":"ns-a/one"}]`, wantRefusal: `name "ns-a/one" must not contain '/'`},
	{row: 28, name: "upper case must not pass", text: "One", wantParseError: `item 1, "One": "One" must be lower case`, wantRefusal: `"One" must be lower case`},
	{row: 29, name: "a missing network is good text", text: "missing", wantNames: []string{"net1"}},
	{row: 30, name: "a good and a missing network are good text", text: "one,missing", wantNames: []string{"net1", "net2"}},
	{row: 31, name: "another namespace is good text", text: "ns-b/shared", wantNames: []string{"net1"}},
	{row: 33, name: "the own namespace may be written out", text: "one,ns-a/two", wantNames: []string{"net1", "net2"}},
	{row: 34, name: "the namespace default is good text", text: "default/central", wantNames: []string{"net1"}},
	{row: 54, name: "a deviceID must not pass", text: `[{"name":"vf-user","deviceID":"0000:ff:00.7"}]`, wantRefusal: `item 1, "{\"name\":\"vf-user\",\"deviceID\":\"0000:ff:00.7\"}": deviceID "0000:ff:00.7"`},
	{row: 55, name: "a deviceID of a later element must not pass", text: `[{"name":"vf-a"},{"name":"vf-user","deviceID":"0000:ff:00.7"}]`, wantRefusal: `item 2, "{\"name\":\"vf-user\",\"deviceID\":\"0000:ff:00.7\"}": deviceID "0000:ff:00.7"`},
}

func TestNetworksAgreeWithMultus(t *testing.T) {
	ours := []rdma.Attachment{{Namespace: "ns-a", Name: "vf-1"}, {Namespace: "ns-a", Name: "vf-2"}}
	for _, tc := range multusRows {
		t.Run(fmt.Sprintf("row %d: %s", tc.row, tc.name), func(t *testing.T) {
			networks, err := rdma.ParseNetworks(tc.text, "ns-a")
			if tc.wantParseError != "" {
				require.ErrorContains(t, err, tc.wantParseError)
			} else {
				require.NoError(t, err)
				assert.Equal(t, tc.text, networks.String())
			}

			refusals := rdma.ValidateUserNetworks(networksPath, tc.text, "ns-a", nil)
			if tc.wantRefusal != "" {
				require.Len(t, refusals, 1)
				assert.Contains(t, refusals[0].Error(), tc.wantRefusal)
				return
			}
			require.Empty(t, refusals)
			assert.Equal(t, len(tc.wantNames), networks.Len())
			assert.Equal(t, tc.wantNames, multusNames(t, tc.text))

			merged, err := rdma.MergeNetworks(tc.text, "ns-a", ours)
			require.NoError(t, err)
			names := multusNames(t, merged)
			require.Len(t, names, len(tc.wantNames)+2)
			for i, want := range tc.wantNames {
				assert.Equal(t, want, names[i], "the user's interfaces keep their names")
			}
			assertDistinct(t, names)
		})
	}
}

// multusNames is a second reading of the text, as plain as can be, that the code under test is judged by: the interface
// names that Multus gives, eth0 left out.
func multusNames(t *testing.T, text string) []string {
	t.Helper()
	var names []string
	name := func(explicit string) {
		if explicit == "" {
			explicit = fmt.Sprintf("net%d", len(names)+1)
		}
		names = append(names, explicit)
	}
	switch {
	case text == "":
	case strings.ContainsAny(text, `[{"`):
		var elements []*struct{ Name, Namespace, Interface, InterfaceRequest string }
		// Other fields don't matter here: how Multus takes them is seen by ParseNetworks' own cases.
		require.NoError(t, json.Unmarshal([]byte(text), &elements))
		for _, e := range elements {
			require.NotNil(t, e)
			if e.Interface == "" {
				e.Interface = e.InterfaceRequest
			}
			name(e.Interface)
		}
	default:
		for item := range strings.SplitSeq(text, ",") {
			_, explicit, _ := strings.Cut(item, "@")
			name(strings.TrimSpace(explicit))
		}
	}
	return names
}

func assertDistinct(t *testing.T, names []string) {
	t.Helper()
	seen := map[string]bool{"eth0": true, "lo": true}
	for _, name := range names {
		assert.False(t, seen[name], "interface %q twice in %q", name, names)
		seen[name] = true
	}
}

func TestParseNetworksReadsWhatMultusReads(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []rdma.Network
	}{
		{"parts are trimmed", " ns-b / one @ ib0 , two ", []rdma.Network{{Namespace: "ns-b", Name: "one", Interface: "ib0"}, {Namespace: "ns-a", Name: "two"}}},
		{"an empty namespace before a slash is the pod's", "/one", []rdma.Network{{Namespace: "ns-a", Name: "one"}}},
		{"an empty interface after an @ is automatic", "one@", []rdma.Network{{Namespace: "ns-a", Name: "one"}}},
		{"the bare word null is a name", "null", []rdma.Network{{Namespace: "ns-a", Name: "null"}}},
		{"line breaks around items do not matter", "one,\n\ttwo\n", []rdma.Network{{Namespace: "ns-a", Name: "one"}, {Namespace: "ns-a", Name: "two"}}},
		{"JSON keys are read in any case, as Go does", `[{"NAME":"one","DeviceId":"d","Interface":"x"}]`, []rdma.Network{{Namespace: "ns-a", Name: "one", Interface: "x", DeviceID: "d"}}},
		{"of a key given twice the last counts", `[{"name":"one","name":"two","deviceID":"d","deviceID":null}]`, []rdma.Network{{Namespace: "ns-a", Name: "two", DeviceID: "d"}}},
		{"the old key of the interface is obeyed", `[{"name":"one","interfaceRequest":"x"}]`, []rdma.Network{{Namespace: "ns-a", Name: "one", Interface: "x"}}},
		{"the new key of the interface wins over the old", `[{"name":"one","interfaceRequest":"x","interface":"y"}]`, []rdma.Network{{Namespace: "ns-a", Name: "one", Interface: "y"}}},
		{"unknown keys are let through", `[{"name":"one","colour":[1,{}]}]`, []rdma.Network{{Namespace: "ns-a", Name: "one"}}},
		{"all known keys are let through", `[{"name":"one","namespace":"ns-b","ips":["10.0.0.1/24","fd00::1"],"mac":"02:00:00:00:00:0a","infiniband-guid":"c2:11:22:33:44:55:66:77","portMappings":[{"hostPort":1,"containerPort":2}],"bandwidth":{"ingressRate":1},"cni-args":{"a":[1]},"default-route":["10.0.0.254"]}]`, []rdma.Network{{Namespace: "ns-b", Name: "one"}}},
		{"JSON does not trim", `[{"name":"one","interface":" x"}]`, []rdma.Network{{Namespace: "ns-a", Name: "one", Interface: " x"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			networks, err := rdma.ParseNetworks(tc.text, "ns-a")
			require.NoError(t, err)
			assert.Equal(t, tc.want, networks.Elements())
			assert.Equal(t, len(tc.want), networks.Len())
		})
	}
}

func TestParseNetworksRefusesWhatMultusRefuses(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"W4: a trailing comma must not pass", "a,b,", `item 3, "": must not be empty`},
		{"a comma alone must not pass", ",", `item 1, ""`},
		{"two commas must not pass", "a,,b", `item 2, "": must not be empty`},
		{"W5: a missing brace must be refused with its place", `[{"name":"x","ips":["10.1.1.104/24"]]`, `not valid JSON at byte 37, near "\":[\"10.1.1.104/24\"]]"`},
		{"two slashes must not pass", "a/b/c", "more than one '/'"},
		{"two @ must not pass", "a@b@c", "more than one '@'"},
		{"a slash after the @ must not pass", "one@a/b", `"one@a" must be lower case`},
		{"a slash with nothing behind it must not pass", "ns-a/", "must have a name"},
		{"an interface without a network must not pass", "@ib0", "must have a name"},
		{"a dot must not pass in the short form", "a.b", "a name with dots needs the JSON form"},
		{"a leading dash must not pass", "-a", `"-a" must be lower case`},
		{"white space within an interface name must not pass", "a@b c", `interface "b c"`},
		{"a string must not pass for an array", `"one"`, "not a JSON string"},
		{"a string must not pass for an object", `["one"]`, "item 1, \"\\\"one\\\"\": must be an object, not a JSON string"},
		{"an array must not pass for an object", `[[]]`, "must be an object, not a JSON array"},
		{"a second text after the array must not pass", `[{"name":"a"}] x`, "not valid JSON at byte 16"},
		{"an empty name must not pass", `[{"name":""}]`, `must have a "name"`},
		{"a MAC that is none must not pass", `[{"name":"a","mac":"zz"}]`, `mac "zz"`},
		{"a GUID that is none must not pass", `[{"name":"a","infiniband-guid":"zz"}]`, `infiniband-guid "zz"`},
		{"an IP that is none must not pass", `[{"name":"a","ips":["10.0.0"]}]`, `ips: "10.0.0"`},
		{"a prefix length that is none must not pass", `[{"name":"a","ips":["10.0.0.1/33"]}]`, `ips: "10.0.0.1/33"`},
		{"a gateway that is none must not pass", `[{"name":"a","default-route":["x"]}]`, "invalid IP address"},
		{"a value of the wrong kind must not pass", `[{"name":"a","ips":"10.0.0.1"}]`, `"ips" must not be a JSON string`},
		{"a nested value of the wrong kind must not pass", `[{"name":"a","bandwidth":{"ingressRate":"1"}}]`, `must not be a JSON string`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			networks, err := rdma.ParseNetworks(tc.text, "ns-a")
			require.ErrorContains(t, err, tc.want)
			assert.Zero(t, networks.Len())
			assert.NotContains(t, err.Error(), "selectionElement", "our Go types are no business of the user's")
			assert.NotEmpty(t, rdma.ValidateUserNetworks(networksPath, tc.text, "ns-a", nil))
			_, err = rdma.MergeNetworks(tc.text, "ns-a", []rdma.Attachment{{Namespace: "ns-a", Name: "vf"}})
			require.Error(t, err)
		})
	}
}

func TestParseNetworksQuotesNoMoreThanAGlance(t *testing.T) {
	long := strings.Repeat("A", 200_000)
	for _, text := range []string{long, "[" + long, `[{"name":"a","mac":"` + long + `"}]`, "one@" + long, `["` + long + `"]`, `[` + strings.Repeat("1", 100_000) + `]`} {
		_, err := rdma.ParseNetworks(text, "ns-a")
		require.Error(t, err)
		assert.Less(t, len(err.Error()), 1000)
	}
}
