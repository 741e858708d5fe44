package admission

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// Ledger is what admission needs of the pools. Its methods are called concurrently and answer from memory.
type Ledger interface {
	// Choose picks pools and, if the demand has an admission id, reserves the devices in the same step.
	Choose(cfg *pools.Config, d pools.Demand) (pools.Choice, error)
	// CancelReservation gives back what Choose reserved for the id, if anything.
	CancelReservation(id string)
	// KnowsAdmission reports whether an existing pod carries the id.
	KnowsAdmission(id string) bool
}

// Attachment is what is known of a NetworkAttachmentDefinition.
type Attachment struct {
	// Missing says that there is none of that name.
	Missing bool
	// Pool is the extended resource that feeds it devices, empty if none does.
	Pool string
	// PodUID is the pod that the tenant-controller made it for, empty if it is a user's own.
	PodUID string
}

// Injector decides about pods. Its fields are set once.
type Injector struct {
	Ledger Ledger
	// Pools returns the pool configuration in force.
	Pools func() *pools.Config
	// Attachments looks a NetworkAttachmentDefinition up in memory. False means that nothing is known about it (yet).
	Attachments func(namespace, name string) (Attachment, bool)
	// NewID makes admission ids; nil means random ones.
	NewID func() string
}

// Result is what becomes of an admitted pod.
type Result struct {
	// Pod is a changed copy, which shares with the original what was not changed.
	Pod    *corev1.Pod
	Choice pools.Choice
	// Warnings are shown to the user.
	Warnings []string
}

// admissionID is the form of the ids that newID makes; anything else was not made by us.
var admissionID = regexp.MustCompile(`^[a-z0-9]{16}$`)

// Inject returns the pod as it should be created, or why it must not be. The namespace is the request's: a pod made from
// a template carries none yet. A dry run reserves nothing.
func (i *Injector) Inject(original *corev1.Pod, namespace string, dryRun bool) (*Result, field.ErrorList) {
	id := i.admissionID(original)
	result, errs := i.inject(changeable(original), namespace, id, dryRun)
	if len(errs) > 0 && !dryRun {
		// An earlier pass of this admission, or the choice just made, may have reserved what is not needed any more.
		i.Ledger.CancelReservation(id)
	}
	return result, errs
}

// changeable copies what inject changes: annotations, finalizers, scheduler name, and the containers' requests and limits.
func changeable(pod *corev1.Pod) *corev1.Pod {
	c := *pod
	c.Annotations = maps.Clone(pod.Annotations)
	c.Finalizers = slices.Clone(pod.Finalizers)
	c.Spec.InitContainers = slices.Clone(pod.Spec.InitContainers)
	c.Spec.Containers = slices.Clone(pod.Spec.Containers)
	for _, containers := range [][]corev1.Container{c.Spec.InitContainers, c.Spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			r.Requests, r.Limits = maps.Clone(r.Requests), maps.Clone(r.Limits)
		}
	}
	return &c
}

func (i *Injector) inject(pod *corev1.Pod, namespace, id string, dryRun bool) (*Result, field.ErrorList) {
	cfg := i.Pools()
	stale := i.stripStale(pod, namespace)
	intent, errs := rdma.ParseIntent(pod.Annotations, cfg.Policy.MaxCount)
	errs = append(errs, refusals(pod)...)
	errs = append(errs, checkRoom(pod, intent)...)
	errs = append(errs, validateNetworks(pod, namespace, cfg, i.Attachments)...)
	errs = append(errs, normalize(pod, cfg)...)
	pinned, pinErrs := pin(pod, cfg, intent)
	if errs = append(errs, pinErrs...); len(errs) > 0 {
		return nil, errs
	}
	demand := pools.Demand{Intent: intent, Pinned: pinned, Pod: pod, Group: cfg.Policy.GroupOf(namespace, pod)}
	if !dryRun {
		demand.AdmissionID = id
	}
	if pod.Name != "" {
		demand.Name = namespace + "/" + pod.Name
	}
	choice, err := i.Ledger.Choose(cfg, demand)
	if err != nil {
		return nil, field.ErrorList{refusalError(err, pod, intent)}
	}
	if errs := fill(pod, choice.Assignment, cfg.Policy.Sidecars); len(errs) > 0 {
		return nil, errs
	}
	stamp(pod, choice.Assignment, id)
	return &Result{Pod: pod, Choice: choice, Warnings: append(stale, warnings(choice)...)}, nil
}

// admissionID keeps the id of a first pass over the same pod. An id that an existing pod carries was copied from there.
func (i *Injector) admissionID(pod *corev1.Pod) string {
	id := pod.Annotations[rdma.AdmissionIDAnnotation]
	if admissionID.MatchString(id) && slices.Contains(pod.Finalizers, rdma.Finalizer) && !i.Ledger.KnowsAdmission(id) {
		return id
	}
	if i.NewID != nil {
		return i.NewID()
	}
	return utilrand.String(16)
}

// stamp writes our words; all other keys of our domain but the user's own are stale copies and go.
func stamp(pod *corev1.Pod, assignment rdma.Assignment, id string) {
	words := assignment.Annotations()
	words[rdma.AdmissionIDAnnotation] = id
	for key := range pod.Annotations {
		if strings.HasPrefix(key, rdma.Domain) && key != rdma.ContainerAnnotation {
			delete(pod.Annotations, key)
		}
	}
	maps.Copy(pod.Annotations, words)
	if !slices.Contains(pod.Finalizers, rdma.Finalizer) {
		pod.Finalizers = append(pod.Finalizers, rdma.Finalizer)
	}
	pod.Spec.SchedulerName = rdma.SchedulerName
}

func refusalError(err error, pod *corev1.Pod, intent rdma.Intent) *field.Error {
	t := intent[0].Type
	var refusal *pools.RefusalError
	if errors.As(err, &refusal) && refusal.Type != "" {
		t = refusal.Type
	}
	return field.Invalid(annotationPath(t.Annotation()), pod.Annotations[t.Annotation()], err.Error())
}

func warnings(choice pools.Choice) []string {
	var why string
	switch choice.Outcome {
	case pools.Waits:
		why = "has no devices free for this pod now; it waits for them"
	case pools.NoNode:
		why = "is offered by no node that this pod could run on; it waits for such a node"
	default:
		return nil
	}
	var all []string
	for _, e := range choice.Assignment {
		all = append(all, fmt.Sprintf("%s: pool %s %s (required %d)", e.Type.Annotation(), e.Pool, why, e.Count))
	}
	return all
}
