package admission

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var multusPart = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// element is one entry of the annotation.
type element struct{ Namespace, Name, Interface, InterfaceRequest string }

// multusReads says which interfaces Multus gives a pod besides eth0, in the form "interface=namespace/network", or why the
// pod cannot start or stop. It was written after what the real Multus v4.3.0 was seen to do, and shares nothing with the
// code under test.
func multusReads(text, podNamespace string) ([]string, error) {
	var elements []*element
	var err error
	switch {
	case text == "":
	case strings.ContainsAny(text, `[{"`):
		err = json.Unmarshal([]byte(text), &elements)
	default:
		for item := range strings.SplitSeq(text, ",") {
			e, itemErr := shortElement(item)
			elements, err = append(elements, e), errors.Join(err, itemErr)
		}
	}
	if err != nil {
		return nil, err
	}
	taken := map[string]bool{"eth0": true, "lo": true}
	var interfaces []string
	for i, e := range elements {
		if e == nil {
			return nil, errors.New("panic: nil pointer")
		}
		if e.Name == "" || strings.Contains(e.Name, "/") {
			return nil, fmt.Errorf("invalid resource name %q", e.Name)
		}
		name := cmp.Or(e.Interface, e.InterfaceRequest, fmt.Sprintf("net%d", i+1))
		if len(name) > 15 || strings.ContainsAny(name, " \t\n/:") {
			return nil, fmt.Errorf("interface name %q", name)
		}
		if taken[name] {
			return nil, fmt.Errorf("interface name %s already exists", name)
		}
		taken[name] = true
		interfaces = append(interfaces, name+"="+cmp.Or(e.Namespace, podNamespace)+"/"+e.Name)
	}
	return interfaces, nil
}

// shortElement reads [namespace/]name[@interface].
func shortElement(item string) (*element, error) {
	e := &element{}
	parts := strings.Split(item, "/")
	if len(parts) > 2 {
		return nil, fmt.Errorf("%q: more than one slash", item)
	}
	if len(parts) == 2 {
		e.Namespace = strings.TrimSpace(parts[0])
	}
	parts = strings.Split(parts[len(parts)-1], "@")
	if len(parts) > 2 {
		return nil, fmt.Errorf("%q: more than one @", item)
	}
	e.Name = strings.TrimSpace(parts[0])
	if len(parts) == 2 {
		e.Interface = strings.TrimSpace(parts[1])
	}
	for _, part := range []string{e.Namespace, e.Name} {
		if part != "" && !multusPart.MatchString(part) {
			return nil, fmt.Errorf("%q does not match the form", part)
		}
	}
	return e, nil
}

// TestTheReaderReadsAsMultusDid holds the reader to rows of the table that was observed.
func TestTheReaderReadsAsMultusDid(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "[]",
		"one,one":             "[net1=ns-a/one net2=ns-a/one]",
		"ns-b/one , two":      "[net1=ns-b/one net2=ns-a/two]",
		"one@rdma0,user":      "[rdma0=ns-a/one net2=ns-a/user]",
		"one@abcdefghijklmno": "[abcdefghijklmno=ns-a/one]",
		`[{"name":"one"},{"name":"two","namespace":"ns-b","interface":"rdma0"}]`: "[net1=ns-a/one rdma0=ns-b/two]",
		"[]": "[]",
	} {
		got, err := multusReads(text, "ns-a")
		require.NoError(t, err)
		require.Equal(t, want, fmt.Sprint(got))
	}
	for _, text := range []string{"one@net2,two", "one@x,two@x", "one@eth0", "one@abcdefghijklmnop", `[{"name":"one","interface":"abcdefghijklmnop"}]`,
		"one,two,", " ", "[null]", "[{}]", `[{"name":"one"}`, `{"name":"one"}`, `one,[{"name":"two"}]`, `[{"name":"ns-a/one"}]`, "One", "a/b/c", "a@b@c"} {
		_, err := multusReads(text, "ns-a")
		require.Error(t, err, "%q", text)
	}
}
