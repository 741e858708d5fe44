package rdma

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PoolOf tells which configured pool feeds a NetworkAttachmentDefinition with devices, if one does.
type PoolOf = func(namespace, nad string) (pool string, ok bool)

// maxUserNetworks is how many networks of the user's own an RDMA pod may have. PreBind looks at each of them once more,
// live: 32 are 64 ms of the 500 requests a second that the shipped scheduler configuration allows for all pods together,
// while the 131,072 that fit into the annotation would be four minutes of them at every attempt.
const maxUserNetworks = 32

// maxNetworkErrors bounds a refusal: 32 items can have more faults than anybody reads.
const maxNetworkErrors = 16

// podInterface is the name of the pod's default interface, and loopback the one that every network namespace has.
const (
	podInterface = "eth0"
	loopback     = "lo"
)

// ValidateUserNetworks refuses what a user must not write in the networks annotation of an RDMA pod: what ParseNetworks
// refuses, what can never start or never stop, and what takes a device that is not the user's (a deviceID, or a
// NetworkAttachmentDefinition that a configured pool feeds), and more than 32 networks. poolOf may be nil. All faults come
// at once, in the order of the text, the first 16 of them in words. Positions count from 1, as Multus' automatic names
// net<i> do.
func ValidateUserNetworks(path *field.Path, text, podNamespace string, poolOf PoolOf) field.ErrorList {
	networks, err := readNetworks(text, podNamespace)
	if err != nil {
		return field.ErrorList{field.Invalid(path, bounded(text), err.Error())}
	}
	if networks.Len() > maxUserNetworks {
		return field.ErrorList{field.Invalid(path, bounded(text), fmt.Sprintf("must name at most %d networks, not %d", maxUserNetworks, networks.Len()))}
	}
	clashes := networks.clashes()
	var errs field.ErrorList
	for i, item := range networks.items {
		check := itemCheck{path: path, position: i + 1, item: item}
		check.all(podNamespace, poolOf)
		if clash, ok := clashes[i]; ok {
			check.invalid(clash)
		}
		errs = append(errs, check.errs...)
	}
	return firstErrors(path, errs)
}

// ValidateDefaultNetwork refuses what an RDMA pod must not have in the annotation v1.multus-cni.io/default-network: its
// text is read like the other one, must hold exactly one network (Multus v4.3.0, pkg/k8sclient/k8sclient.go,
// tryLoadK8sPodDefaultNetwork: more is an error, none a panic), must keep the name eth0 that the container runtime looks
// for, and must not feed from a configured pool: Multus then hands one device to two interfaces.
//
// Call it when the annotation is there: one that is there and empty is an error for Multus. defaultNamespace is the
// namespace in which Multus looks for a network written without one; that is Multus' own (its option multusNamespace,
// kube-system unless set), not the pod's.
func ValidateDefaultNetwork(path *field.Path, text, defaultNamespace string, poolOf PoolOf) field.ErrorList {
	networks, err := readNetworks(text, defaultNamespace)
	if err != nil {
		return field.ErrorList{field.Invalid(path, bounded(text), err.Error())}
	}
	if networks.Len() != 1 {
		return field.ErrorList{field.Invalid(path, bounded(text),
			fmt.Sprintf("must hold exactly one network, not %d; %s", networks.Len(), networksGrammar))}
	}
	check := itemCheck{path: path, position: 1, item: networks.items[0]}
	check.all(defaultNamespace, poolOf)
	if iface := check.item.network.Interface; check.item.err == nil && iface != "" && iface != podInterface {
		check.invalid(fmt.Sprintf("interface %q must be left out: the default network is always %s",
			bounded(iface), podInterface))
	}
	return check.errs
}

// itemCheck gathers the faults of one item.
type itemCheck struct {
	path     *field.Path
	position int
	item     networksItem
	errs     field.ErrorList
}

func (c *itemCheck) invalid(detail string) {
	c.errs = append(c.errs,
		field.Invalid(c.path, bounded(c.item.raw), fmt.Sprintf("item %d: %s", c.position, detail)))
}

func (c *itemCheck) forbidden(detail string) {
	c.errs = append(c.errs,
		field.Forbidden(c.path, fmt.Sprintf("item %d, %q: %s", c.position, bounded(c.item.raw), detail)))
}

func (c *itemCheck) all(defaultNamespace string, poolOf PoolOf) {
	if c.item.err != nil {
		c.invalid(c.item.err.Error())
		return
	}
	c.object(defaultNamespace)
	network := c.item.network
	if fault := interfaceFault(network.Interface); network.Interface != "" && fault != "" {
		c.invalid(fmt.Sprintf("interface %q %s", bounded(network.Interface), fault))
	}
	if network.DeviceID != "" {
		c.forbidden(fmt.Sprintf("deviceID %q must be left out: devices are given by the kubelet, not chosen by name",
			bounded(network.DeviceID)))
	}
	if poolOf == nil {
		return
	}
	if pool, ok := poolOf(network.Namespace, network.Name); ok {
		c.forbidden(fmt.Sprintf("network %s/%s takes a device of the pool %q and must be left out: ask for the device with %s or %s",
			bounded(network.Namespace), bounded(network.Name), bounded(pool), VFAnnotation, PFAnnotation))
	}
}

// object checks that a NetworkAttachmentDefinition of that namespace and name can exist at all.
func (c *itemCheck) object(defaultNamespace string) {
	network := c.item.network
	if strings.Contains(network.Name, "/") {
		c.invalid(fmt.Sprintf(`name %q must not contain '/': write the namespace into the key "namespace"`,
			bounded(network.Name)))
	} else if faults := validation.IsDNS1123Subdomain(network.Name); len(faults) > 0 {
		c.invalid(fmt.Sprintf("name %q: %s", bounded(network.Name), strings.Join(faults, "; ")))
	}
	if network.Namespace == defaultNamespace {
		return // not from the text
	}
	if faults := validation.IsDNS1123Label(network.Namespace); len(faults) > 0 {
		c.invalid(fmt.Sprintf("namespace %q: %s", bounded(network.Namespace), strings.Join(faults, "; ")))
	}
}

// interfaceFault tells what makes an interface name one that no pod can start with, or nothing. Multus looks at length,
// white space and '/' and does so in the short form only; the CNI library asks for more at every ADD and every DEL, so
// that a bad name also keeps the pod from ever stopping (containernetworking/cni v1.3.0, pkg/utils/utils.go,
// ValidateInterfaceName). The kernel takes '%' for a pattern and gives the interface another name, and no environment
// variable, CNI_IFNAME that is, can hold a zero byte.
func interfaceFault(name string) string {
	switch {
	case len(name) > maxInterfaceName:
		return fmt.Sprintf("must be at most %d bytes long, not %d", maxInterfaceName, len(name))
	case name == "." || name == "..":
		return "must not be '.' or '..'"
	case strings.ContainsAny(name, "/:%\x00") || strings.ContainsFunc(name, unicode.IsSpace):
		return "must not contain white space, '/', ':', '%' or a zero byte"
	}
	return ""
}

// clashes tells, by index, which explicit interface names Multus could not give because another interface has them.
// Automatic names go by position, whatever the explicit names before them are: in "a@net2,b" both are net2.
func (n Networks) clashes() map[int]string {
	automatic := map[string]int{}
	for i, item := range n.items {
		if item.err == nil && item.network.Interface == "" {
			automatic[interfaceAt(item.network, i)] = i + 1
		}
	}
	explicit := map[string]int{podInterface: 0, loopback: 0}
	clashes := map[int]string{}
	for i, item := range n.items {
		name := item.network.Interface
		if item.err != nil || name == "" {
			continue
		}
		owner, taken := explicit[name]
		if !taken {
			explicit[name] = i + 1
			owner, taken = automatic[name]
		}
		if taken {
			clashes[i] = describeClash(name, owner)
		}
	}
	return clashes
}

func describeClash(name string, owner int) string {
	if owner == 0 {
		return fmt.Sprintf("interface %q must have another name: every pod has an interface %s already", name, name)
	}
	return fmt.Sprintf("interface %q must have another name: item %d has that name already (Multus calls item i net<i> "+
		"unless told otherwise)", bounded(name), owner)
}

// interfaceAt is the name that Multus gives the network at an index (v4.3.0, pkg/multus/multus.go, getIfname). Clusters
// whose Multus has defaultNetworks of its own count those first; a pod's text does not tell.
func interfaceAt(network Network, index int) string {
	if network.Interface != "" {
		return network.Interface
	}
	return fmt.Sprintf("net%d", index+1)
}

func firstErrors(path *field.Path, errs field.ErrorList) field.ErrorList {
	if len(errs) <= maxNetworkErrors {
		return errs
	}
	more := field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("and %d faults more", len(errs)-maxNetworkErrors))
	return append(slices.Clip(errs[:maxNetworkErrors]), more)
}
