package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Attachment is a network of ours: a NetworkAttachmentDefinition that the tenant-controller made for the pod.
type Attachment struct {
	// Namespace of the NetworkAttachmentDefinition; empty means the pod's. It is written out in any case.
	Namespace string
	Name      string
	// Interface is the name that the tenant-controller wishes; empty leaves it to MergeNetworks.
	Interface string
}

// attachmentInterface holds our own interface names to what both forms of the annotation can carry without quoting. It
// is narrower than what users may write.
var attachmentInterface = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// MergeNetworks appends our networks to the user's, whose text is kept byte by byte and stays in its form, short or JSON;
// the empty text becomes the short form, or JSON if one of our names has a dot, which the short form cannot carry.
//
// Every network of ours is written with its namespace and an interface name that no other interface of the final list
// has: the wished one, or the first free of rdma0, rdma1, … Ours come last, so that the automatic names of the user's
// networks, which go by position, stay as they are. The same arguments give the same text. Errors are a user's text that
// cannot work in itself, a wish that is invalid or taken, and a network of ours that no NetworkAttachmentDefinition can
// be.
func MergeNetworks(userText, podNamespace string, ours []Attachment) (string, error) {
	if len(ours) == 0 {
		return userText, nil
	}
	user, err := ParseNetworks(userText, podNamespace)
	if err != nil {
		return "", err
	}
	taken, err := user.takenInterfaces()
	if err != nil {
		return "", err
	}
	named, err := completeAttachments(ours, podNamespace, taken)
	if err != nil {
		return "", err
	}
	dotted := firstDotted(named)
	switch {
	case user.form == formJSON:
		return appendJSON(userText, user.Len(), named)
	case dotted == "":
		return appendShort(userText, named), nil
	case user.form == formEmpty:
		return appendJSON("[]", 0, named)
	default:
		return "", fmt.Errorf("networks %q: the network %q cannot be appended, because its name has a dot and the short "+
			"form allows none; write the annotation as a JSON array", bounded(userText), dotted)
	}
}

// OwnNetworks returns the networks that were appended for us to a bound pod's annotation: the last ones, as many as were
// assigned. Of a pod that was bound past tenant-scheduler they are the user's.
func OwnNetworks(pod *corev1.Pod, assignment Assignment) (Networks, error) {
	all, err := ParseNetworks(pod.Annotations[NetworksAnnotation], pod.Namespace)
	if err != nil || int64(all.Len()) <= assignment.Devices() {
		return all, err
	}
	items := all.items[int64(all.Len())-assignment.Devices():]
	raws := make([]string, len(items))
	for i, item := range items {
		raws[i] = item.raw
	}
	// A copy: a part of the text would hold on to all of it.
	text := strings.Clone(strings.Join(raws, ","))
	if all.form == formJSON {
		text = "[" + text + "]"
	}
	return Networks{text: text, form: all.form, items: items}, nil
}

// takenInterfaces returns all names that Multus will have given before ours, and an error if it cannot give them.
func (n Networks) takenInterfaces() (map[string]bool, error) {
	taken := map[string]bool{podInterface: true, loopback: true}
	for i, item := range n.items {
		name := interfaceAt(item.network, i)
		if taken[name] {
			return nil, fmt.Errorf("networks: item %d, %q: the interface name %q is taken", i+1, bounded(item.raw), bounded(name))
		}
		if fault := interfaceFault(name); fault != "" {
			return nil, fmt.Errorf("networks: item %d, %q: interface %q %s", i+1, bounded(item.raw), bounded(name), fault)
		}
		taken[name] = true
	}
	return taken, nil
}

// completeAttachments checks our networks and gives each a namespace and an interface name, which it adds to taken.
// Wishes come first: a generated name gives way to one wished further down.
func completeAttachments(ours []Attachment, podNamespace string, taken map[string]bool) ([]Attachment, error) {
	named := make([]Attachment, len(ours))
	for i, attachment := range ours {
		if attachment.Namespace == "" {
			attachment.Namespace = podNamespace
		}
		if err := checkAttachment(attachment, taken); err != nil {
			return nil, fmt.Errorf("network %q of namespace %q: %w",
				bounded(attachment.Name), bounded(attachment.Namespace), err)
		}
		if attachment.Interface != "" {
			taken[attachment.Interface] = true
		}
		named[i] = attachment
	}
	next := 0
	for i := range named {
		if named[i].Interface != "" {
			continue
		}
		for taken[generatedInterface(next)] {
			next++
		}
		named[i].Interface = generatedInterface(next)
		next++
	}
	return named, nil
}

func generatedInterface(number int) string { return fmt.Sprintf("rdma%d", number) }

func checkAttachment(attachment Attachment, taken map[string]bool) error {
	if faults := validation.IsDNS1123Label(attachment.Namespace); len(faults) > 0 {
		return errors.New("the namespace is invalid: " + strings.Join(faults, "; "))
	}
	if faults := validation.IsDNS1123Subdomain(attachment.Name); len(faults) > 0 {
		return errors.New("the name is invalid: " + strings.Join(faults, "; "))
	}
	name := attachment.Interface
	if name == "" {
		return nil
	}
	if fault := interfaceFault(name); fault != "" {
		return fmt.Errorf("the wished interface %q %s", bounded(name), fault)
	}
	if !attachmentInterface.MatchString(name) {
		return fmt.Errorf("the wished interface %q must be of letters, digits, '_', '.' and '-'", bounded(name))
	}
	if taken[name] {
		return fmt.Errorf("the wished interface %q is taken", name)
	}
	return nil
}

// firstDotted returns the first name that the short form cannot carry.
func firstDotted(attachments []Attachment) string {
	for _, attachment := range attachments {
		if !shortPart.MatchString(attachment.Name) {
			return attachment.Name
		}
	}
	return ""
}

func appendShort(text string, ours []Attachment) string {
	var out strings.Builder
	out.WriteString(text)
	for _, attachment := range ours {
		if out.Len() > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%s/%s@%s", attachment.Namespace, attachment.Name, attachment.Interface)
	}
	return out.String()
}

// appendJSON writes ours before the closing bracket of an array of length elements. It never encodes what the user wrote:
// encoding/json would compact a RawMessage and escape its HTML characters.
func appendJSON(text string, length int, ours []Attachment) (string, error) {
	end := strings.LastIndexByte(text, ']')
	if end < 0 {
		return "", fmt.Errorf("networks %q: no array", bounded(text))
	}
	var out strings.Builder
	out.WriteString(text[:end])
	for i, attachment := range ours {
		if length+i > 0 {
			out.WriteByte(',')
		}
		element, err := json.Marshal(struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
			Interface string `json:"interface"`
		}{attachment.Name, attachment.Namespace, attachment.Interface})
		if err != nil {
			return "", fmt.Errorf("networks: %w", err)
		}
		out.Write(element)
	}
	out.WriteString(text[end:])
	return out.String(), nil
}

// StripNetworks takes out the networks that drop picks, such as those that a copied manifest brought from another pod,
// and reports whether there were any. What is left keeps its bytes; if nothing is left the text is empty, and if nothing
// was dropped it is unchanged. Automatic interface names of later networks move up, as Multus counts positions.
func StripNetworks(text, podNamespace string, drop func(Network) bool) (string, bool, error) {
	networks, err := ParseNetworks(text, podNamespace)
	if err != nil {
		return "", false, err
	}
	var kept []string
	for _, item := range networks.items {
		if !drop(item.network) {
			kept = append(kept, item.raw)
		}
	}
	switch {
	case len(kept) == networks.Len():
		return text, false, nil
	case len(kept) == 0:
		return "", true, nil
	case networks.form == formJSON:
		return "[" + strings.Join(kept, ",") + "]", true, nil
	default:
		return strings.Join(kept, ","), true, nil
	}
}
