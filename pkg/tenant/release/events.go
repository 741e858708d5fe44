package release

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// Reasons of Events on pods whose networks are given back.
const (
	reasonReleaseFailed = "NetworkReleaseFailed"
	reasonRefused       = "RefusedByNode"
	reasonForced        = "NetworksForceReleased"
)

// Reasons of Events on bound pods whose allocation is not as it should be.
const (
	reasonMissing = "NetworkAllocationMissing"
	reasonMended  = "NetworkAllocationRepaired"
	reasonLost    = "NetworksChanged"
)

// Recorder is the part of an event recorder that the package needs.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

const (
	// maxNoteBytes is the API server's limit (apis/core/validation, NoteLengthLimit): it refuses an Event with a longer
	// text, and the recorder then drops it.
	maxNoteBytes = 1024
	// maxForeignBytes is for text of others in the midst of ours, so that what to do about it still fits in behind.
	maxForeignBytes = 400
)

// warnf raises a Warning on the pod. All Events of the package go through here, because most have text of others in them:
// the kubelet's, the tenant-controller's, names.
func warnf(recorder Recorder, pod *corev1.Pod, reason, action, format string, args ...any) {
	recorder.Eventf(pod, nil, corev1.EventTypeWarning, reason, action, "%s", tenant.Printable(fmt.Sprintf(format, args...), maxNoteBytes))
}

func foreign(text string) string { return tenant.Printable(text, maxForeignBytes) }

// listed names as many as there is room for, and counts the others.
func listed(names []string) string {
	var text strings.Builder
	for i, name := range names {
		name = foreign(name)
		if i > 0 {
			name = ", " + name
		}
		if i > 0 && text.Len()+len(name) > maxForeignBytes {
			fmt.Fprintf(&text, " and %d more", len(names)-i)
			break
		}
		text.WriteString(name)
	}
	return text.String()
}
