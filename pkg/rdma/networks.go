package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// Network is one element of a networks annotation, as Multus reads it.
type Network struct {
	// Namespace of the NetworkAttachmentDefinition; the pod's own where the text names none.
	Namespace string
	// Name of the NetworkAttachmentDefinition.
	Name string
	// Interface is the name asked for, or empty: Multus then calls it net<i>, i being the position in the list from 1.
	Interface string
	// DeviceID is a device that the text names by itself; JSON only. Multus hands it to the plugin when the kubelet's
	// devices are used up.
	DeviceID string
}

// Networks is a networks annotation that has been read, and that remembers its text byte by byte: a round trip through
// any struct would drop the fields which that struct does not know. The zero value has no networks.
type Networks struct {
	text  string
	form  networksForm
	items []networksItem
}

// networksForm is the way in which a networks annotation is written.
type networksForm int

const (
	formEmpty networksForm = iota
	formShort
	formJSON
)

// networksItem is one item between commas, or one element of the JSON array.
type networksItem struct {
	// raw is the item as written; in the short form with its blanks.
	raw     string
	network Network
	// err tells why Multus cannot use the item; network says nothing then.
	err error
}

// networksGrammar is what an error says is accepted.
const networksGrammar = `accepted are a comma list of [namespace/]name[@interface], such as "a,ns/b@ib0", ` +
	`or a JSON array of objects, such as [{"name":"a","namespace":"ns","interface":"ib0"}]`

// maxInterfaceName is Linux' IFNAMSIZ less the closing zero, in bytes.
const maxInterfaceName = 15

var (
	errBlankNetworks  = errors.New("must not be blank: leave the annotation out, or name a network; " + networksGrammar)
	errEmptyItem      = errors.New("must not be empty: is there a comma too many? " + networksGrammar)
	errNullItem       = errors.New("must not be null: Multus panics on it; " + networksGrammar)
	errNamelessObject = errors.New(`must have a "name"; ` + networksGrammar)
)

// ParseNetworks reads a networks annotation as Multus does (v4.3.0, pkg/k8sclient/k8sclient.go, parsePodNetworkAnnotation),
// and refuses what it refuses there. Three things that Multus only stumbles over later are refused too: a blank text and
// an element without a name (it looks up a NetworkAttachmentDefinition called ""), and null (it panics). The empty text
// has no networks. The error names the first fault; ValidateUserNetworks names all.
func ParseNetworks(text, podNamespace string) (Networks, error) {
	networks, err := readNetworks(text, podNamespace)
	if err != nil {
		return Networks{}, fmt.Errorf("networks %q: %w", bounded(text), err)
	}
	for i, item := range networks.items {
		if item.err != nil {
			return Networks{}, fmt.Errorf("networks: item %d, %q: %w", i+1, bounded(item.raw), item.err)
		}
	}
	return networks, nil
}

// Len is the number of networks.
func (n Networks) Len() int { return len(n.items) }

// Elements returns the networks in their order.
func (n Networks) Elements() []Network {
	elements := make([]Network, len(n.items))
	for i, item := range n.items {
		elements[i] = item.network
	}
	return elements
}

// String returns the text that was read, unchanged.
func (n Networks) String() string { return n.text }

// readNetworks splits a text into items and reads each. The error is about the text as a whole; what is wrong with one
// item is kept there, so that all faults can be told at once.
func readNetworks(text, podNamespace string) (Networks, error) {
	if text == "" {
		return Networks{}, nil
	}
	if strings.TrimSpace(text) == "" {
		return Networks{}, errBlankNetworks
	}
	// This, and not the first character, is how Multus tells the forms apart.
	if strings.ContainsAny(text, `[{"`) {
		items, err := readJSONItems(text, podNamespace)
		return Networks{text: text, form: formJSON, items: items}, err
	}
	return Networks{text: text, form: formShort, items: readShortItems(text, podNamespace)}, nil
}

func readShortItems(text, podNamespace string) []networksItem {
	raws := strings.Split(text, ",")
	items := make([]networksItem, len(raws))
	for i, raw := range raws {
		network, err := readShortItem(raw)
		items[i] = networksItem{raw: raw, network: inNamespace(network, podNamespace), err: err}
	}
	return items
}

// shortPart is Multus' pattern for a namespace or a name in the short form. A name with a dot, good in Kubernetes and in
// JSON, does not match.
var shortPart = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// readShortItem is Multus' parsePodNetworkObjectName: it cuts at the slash first, so a slash after the @ moves the @ into
// the namespace, and it lets "/name" and "name@" pass as if the empty part were not there.
func readShortItem(raw string) (Network, error) {
	if strings.TrimSpace(raw) == "" {
		return Network{}, errEmptyItem
	}
	namespace, rest, hasNamespace := strings.Cut(raw, "/")
	if !hasNamespace {
		namespace, rest = "", raw
	}
	if strings.Contains(rest, "/") {
		return Network{}, errors.New("must not have more than one '/'; " + networksGrammar)
	}
	name, iface, _ := strings.Cut(rest, "@")
	if strings.Contains(iface, "@") {
		return Network{}, errors.New("must not have more than one '@'; " + networksGrammar)
	}
	network := Network{
		Namespace: strings.TrimSpace(namespace),
		Name:      strings.TrimSpace(name),
		Interface: strings.TrimSpace(iface),
	}
	return network, checkShortItem(network)
}

func checkShortItem(network Network) error {
	for _, part := range []string{network.Namespace, network.Name} {
		if part != "" && !shortPart.MatchString(part) {
			return fmt.Errorf("%q must be lower case letters, digits and '-', with a letter or digit at both ends "+
				"(a name with dots needs the JSON form); %s", bounded(part), networksGrammar)
		}
	}
	if network.Name == "" {
		return errors.New("must have a name; " + networksGrammar)
	}
	if len(network.Interface) > maxInterfaceName || strings.ContainsAny(network.Interface, " \t\n\v\f\r/") {
		return fmt.Errorf("interface %q must be at most %d bytes without white space and '/'",
			bounded(network.Interface), maxInterfaceName)
	}
	return nil
}

func readJSONItems(text, podNamespace string) ([]networksItem, error) {
	var raws []json.RawMessage
	if err := json.Unmarshal([]byte(text), &raws); err != nil {
		return nil, describeJSON(text, err)
	}
	items := make([]networksItem, len(raws))
	for i, raw := range raws {
		network, err := readJSONItem(raw)
		items[i] = networksItem{raw: string(raw), network: inNamespace(network, podNamespace), err: err}
	}
	return items, nil
}

// describeJSON turns an error about the whole text into one that a user who never meant to write JSON can follow.
func describeJSON(text string, err error) error {
	const why = `any '[', '{' or '"' makes Multus read the text as JSON; ` + networksGrammar
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		const before = 20
		near := text[max(0, min(len(text), int(syntax.Offset))-before):]
		return fmt.Errorf("is not valid JSON at byte %d, near %q: %w; %s", syntax.Offset, bounded(near), err, why)
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("must be a JSON array, not a JSON %s; %s", kind.Value, why)
	}
	return fmt.Errorf("%w; %s", err, why)
}

// selectionElement mirrors Multus' NetworkSelectionElement (v4.3.0, pkg/types/types.go), all of it: a value of the wrong
// kind in any field makes Multus refuse the whole list. It is for reading only.
type selectionElement struct {
	Name      string   `json:"name"`
	Namespace string   `json:"namespace"`
	IPs       []string `json:"ips"`
	MAC       string   `json:"mac"`
	GUID      string   `json:"infiniband-guid"`
	Interface string   `json:"interface"`
	// OldInterface is the spelling of before Multus 3.2. It is still obeyed where Interface is empty.
	OldInterface string `json:"interfaceRequest"`
	PortMappings []*struct {
		HostPort      int    `json:"hostPort"`
		ContainerPort int    `json:"containerPort"`
		Protocol      string `json:"protocol"`
		HostIP        string `json:"hostIP"`
	} `json:"portMappings"`
	Bandwidth *struct {
		IngressRate  int `json:"ingressRate"`
		IngressBurst int `json:"ingressBurst"`
		EgressRate   int `json:"egressRate"`
		EgressBurst  int `json:"egressBurst"`
	} `json:"bandwidth"`
	DeviceID string          `json:"deviceID"`
	CNIArgs  *map[string]any `json:"cni-args"`
	Gateways *[]net.IP       `json:"default-route"`
}

func readJSONItem(raw json.RawMessage) (Network, error) {
	if string(raw) == "null" {
		return Network{}, errNullItem
	}
	var element selectionElement
	if err := json.Unmarshal(raw, &element); err != nil {
		return Network{}, describeElement(err)
	}
	if element.Name == "" {
		return Network{}, errNamelessObject
	}
	network := Network{
		Namespace: element.Namespace,
		Name:      element.Name,
		Interface: element.Interface,
		DeviceID:  element.DeviceID,
	}
	if network.Interface == "" {
		network.Interface = element.OldInterface
	}
	return network, checkAddresses(element)
}

// describeElement keeps the name of our Go type, which means nothing to a user, out of the message.
func describeElement(err error) error {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return errors.New(bounded(err.Error()))
	}
	if kind.Field == "" {
		return fmt.Errorf("must be an object, not a JSON %s; %s", bounded(kind.Value), networksGrammar)
	}
	return fmt.Errorf("%q must not be a JSON %s", bounded(kind.Field), bounded(kind.Value))
}

// checkAddresses refuses what Multus refuses while it parses: a MAC, GUID or IP address that is none.
func checkAddresses(element selectionElement) error {
	if _, err := net.ParseMAC(element.MAC); element.MAC != "" && err != nil {
		return fmt.Errorf("mac %q must be a hardware address", bounded(element.MAC))
	}
	if _, err := net.ParseMAC(element.GUID); element.GUID != "" && err != nil {
		return fmt.Errorf("infiniband-guid %q must be a hardware address", bounded(element.GUID))
	}
	for _, ip := range element.IPs {
		if _, _, err := net.ParseCIDR(ip); err != nil && net.ParseIP(ip) == nil {
			return fmt.Errorf("ips: %q must be an IP address, with or without a prefix length", bounded(ip))
		}
	}
	return nil
}

func inNamespace(network Network, podNamespace string) Network {
	if network.Namespace == "" {
		network.Namespace = podNamespace
	}
	return network
}
