package rdma

import (
	"regexp"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Type is a kind of device that a pod can ask for.
type Type string

// The types, in the order in which they are written everywhere.
const (
	VF Type = "vf"
	PF Type = "pf"
)

// Types returns all types in their fixed order.
func Types() []Type { return []Type{VF, PF} }

// Annotation returns the key with which a user asks for devices of the type.
func (t Type) Annotation() string {
	if t == PF {
		return PFAnnotation
	}
	return VFAnnotation
}

// Ask is what a user wants of one type.
type Ask struct {
	Type Type
	// Count is a number of devices, at least 1.
	Count int64
}

// Intent is what a user wants, at most one Ask a type, in the order of Types. Empty means: not an RDMA pod.
type Intent []Ask

// countPattern is stricter than Kubernetes' own quantity parser, which accepts "1k" and "3000m": a device count is read
// by people, and a spelling that two parsers read differently is a fault that shows up late.
var countPattern = regexp.MustCompile(`^[1-9][0-9]*$`)

// maxQuoted bounds how much of a user's text an error repeats, in bytes: an annotation can be 256 KiB.
const maxQuoted = 80

// HasIntent reports whether the annotations ask for devices, rightly spelled or not.
func HasIntent(annotations map[string]string) bool {
	for _, t := range Types() {
		if _, ok := annotations[t.Annotation()]; ok {
			return true
		}
	}
	return false
}

// ParseIntent reads VFAnnotation and PFAnnotation. A count is a decimal number from 1 to maxCount without sign, space,
// leading zero, fraction or suffix; everything else is an error that quotes the text.
func ParseIntent(annotations map[string]string, maxCount int64) (Intent, field.ErrorList) {
	var intent Intent
	var errs field.ErrorList
	for _, t := range Types() {
		text, ok := annotations[t.Annotation()]
		if !ok {
			continue
		}
		path := field.NewPath("metadata", "annotations").Key(t.Annotation())
		count, err := strconv.ParseInt(text, 10, 64)
		if !countPattern.MatchString(text) || err != nil || count > maxCount {
			errs = append(errs, field.Invalid(path, bounded(text),
				"must be a whole number of devices from 1 to "+strconv.FormatInt(maxCount, 10)+
					", digits only, such as \"1\" (no sign, space, fraction or suffix)"))
			continue
		}
		intent = append(intent, Ask{Type: t, Count: count})
	}
	return intent, errs
}

// bounded cuts a text at a rune boundary so that it can stand in an error or an Event.
func bounded(text string) string {
	if len(text) <= maxQuoted {
		return text
	}
	cut := maxQuoted
	for cut > 0 && text[cut]&0xC0 == 0x80 {
		cut--
	}
	return text[:cut] + "..."
}
