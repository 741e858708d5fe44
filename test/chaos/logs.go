package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tenant.network/tenant-webhook/mock/engine"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// readLog calls parse for each line of a file. Lines that were cut by the writer's death are left out.
func readLog(path string, parse func(line []byte) ([]event, error)) ([]event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read from
	var events []event
	reader := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 1 {
			found, parseErr := parse(line)
			if parseErr == nil {
				events = append(events, found...)
			}
		}
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// auditLine is the part of an audit event (audit.k8s.io/v1) that matters here.
type auditLine struct {
	Stage     string
	Verb      string
	User      struct{ Username string }
	ObjectRef struct{ Resource, Subresource, Namespace, Name, UID string }

	ResponseStatus           struct{ Code int }
	RequestObject            json.RawMessage
	ResponseObject           json.RawMessage
	RequestReceivedTimestamp metav1.MicroTime
	StageTimestamp           metav1.MicroTime
}

// auditStart begins every line; a line that a killed API server left unfinished is continued by its successor's first.
var auditStart = []byte(`{"kind":"Event"`)

// parseAudit reads one line of the API server's audit log.
func parseAudit(line []byte) ([]event, error) {
	if isRead(line) {
		return nil, nil
	}
	if i := bytes.LastIndex(line, auditStart); i > 0 {
		line = line[i:]
	}
	var l auditLine
	if err := json.Unmarshal(line, &l); err != nil {
		return nil, err
	}
	switch {
	case l.Stage == "ResponseStarted" && l.Verb == "watch" && l.ObjectRef.Resource == "nodes" && strings.HasSuffix(l.User.Username, schedulerAccount):
		return []event{{Kind: sighted, Source: fromAudit, From: l.StageTimestamp.Time, To: l.StageTimestamp.Time, Text: schedulerAccount}}, nil
	case l.Stage != "ResponseComplete" || l.ResponseStatus.Code/100 != 2:
		return nil, nil
	}
	return l.events()
}

// isRead keeps from decoding what tells nothing: most lines, and the longest.
func isRead(line []byte) bool {
	head := line[:min(len(line), 2000)]
	return !bytes.Contains(head, []byte(`"stage":"ResponseStarted"`)) && slices.ContainsFunc([]string{"list", "watch", "get"}, func(verb string) bool {
		return bytes.Contains(head, []byte(`"verb":"`+verb+`"`))
	})
}

// events is what a write that was made tells.
func (l *auditLine) events() ([]event, error) {
	base := event{
		Source: fromAudit, From: l.RequestReceivedTimestamp.Time, To: l.StageTimestamp.Time,
		Pod:  l.ObjectRef.Namespace + "/" + l.ObjectRef.Name,
		Text: "by " + strings.TrimPrefix(l.User.Username, "system:serviceaccount:"),
	}
	switch l.ObjectRef.Resource + "/" + l.ObjectRef.Subresource {
	case "pods/binding":
		return auditBinding(base, l.RequestObject)
	case "pods/", "pods/status":
		var pod corev1.Pod
		if err := json.Unmarshal(l.ResponseObject, &pod); err != nil || pod.UID == "" {
			return nil, err // a Status: the watch sees the removal
		}
		events := podEvents(base, &pod, l.Verb == "create", l.ObjectRef.Subresource == "status")
		return append(events, objectEvents(base, &pod)...), nil
	case "nodes/":
		base.Kind, base.Node, base.Pod = nodeRemoved, l.ObjectRef.Name, ""
		if l.Verb == "delete" {
			return []event{base}, nil
		}
	case "network-attachment-definitions/":
		base.Kind, base.Networks, base.Pod = networkMade, []string{base.Pod}, ""
		if l.Verb == "delete" {
			base.Kind = networkDeleted
		}
		if l.Verb == "delete" || l.Verb == "create" {
			return []event{base}, nil
		}
	}
	return nil, nil
}

func auditBinding(base event, object json.RawMessage) ([]event, error) {
	var binding corev1.Binding
	if err := json.Unmarshal(object, &binding); err != nil {
		return nil, err
	}
	base.Kind, base.UID, base.Node = podBound, string(binding.UID), binding.Target.Name
	base.Networks = networkNames(binding.Annotations[rdma.NetworksAnnotation], binding.Namespace)
	return []event{base}, nil
}

// podEvents is what a written pod tells: how it was created, and how far its end is. That it has ended is believed of
// status only: other writes show it too, later.
func podEvents(base event, pod *corev1.Pod, isCreate, isStatus bool) []event {
	base.UID, base.Pod = string(pod.UID), pod.Namespace+"/"+pod.Name
	with := func(k kind) event {
		e := base
		e.Kind = k
		return e
	}
	var events []event
	if isCreate {
		e := with(podCreated)
		e.Devices = devicesOf(rdma.Requests(pod))
		e.Wants = rdma.HasIntent(pod.Annotations)
		_, e.Ours = rdma.Ours(pod)
		e.Own = len(networkNames(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace))
		if pod.Spec.NodeName != "" { // it was first seen when it was bound: ours are among them
			for _, n := range e.Devices {
				e.Own = max(e.Own-int(n), 0)
			}
		}
		events = append(events, e)
	}
	if pod.DeletionTimestamp != nil {
		e := with(podDeleting)
		e.Text += fmt.Sprintf(" grace=%ds", *cmp.Or(pod.DeletionGracePeriodSeconds, new(int64)))
		events = append(events, e)
	}
	if isStatus && terminal(pod) {
		e := with(podTerminal)
		e.Text += " " + string(pod.Status.Phase)
		events = append(events, e)
		if !conditionTrue(pod, corev1.PodReadyToStartContainers) {
			e.Kind = podStopped
			events = append(events, e)
		}
	}
	if pod.DeletionTimestamp != nil && len(pod.Finalizers) == 0 && *cmp.Or(pod.DeletionGracePeriodSeconds, new(int64)) == 0 {
		events = append(events, with(podRemoved))
	}
	return events
}

// objectEvents is what a pod tells of earlier writes, to the second, rounded down.
func objectEvents(base event, pod *corev1.Pod) []event {
	base.UID, base.Pod, base.Source, base.To = string(pod.UID), pod.Namespace+"/"+pod.Name, fromObject, base.From
	var events []event
	if pod.Spec.NodeName != "" {
		e := base
		e.Kind, e.From, e.Node = podBound, changed(pod, corev1.PodScheduled), pod.Spec.NodeName
		e.Networks = networkNames(pod.Annotations[rdma.NetworksAnnotation], pod.Namespace)
		events = append(events, e)
	}
	if e := base; terminal(pod) && !conditionTrue(pod, corev1.PodReadyToStartContainers) {
		e.From = changed(pod, corev1.PodReadyToStartContainers)
		for _, e.Kind = range []kind{podTerminal, podStopped} {
			events = append(events, e)
		}
	}
	return events
}

// once keeps the first of what objects tell again and again.
func once(events []event) []event {
	type fact struct {
		uid  string
		kind kind
	}
	told := map[fact]bool{}
	return slices.DeleteFunc(events, func(e event) bool {
		f := fact{e.UID, e.Kind}
		again := e.Source == fromObject && told[f]
		told[f] = told[f] || e.Source == fromObject
		return again
	})
}

func conditionTrue(pod *corev1.Pod, t corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

// networkNames are the networks of a Multus annotation, as namespace/name. What cannot be read counts as one network,
// which then belongs to nobody.
func networkNames(text, namespace string) []string {
	if text == "" {
		return nil
	}
	networks, err := rdma.ParseNetworks(text, namespace)
	if err != nil {
		return []string{"unreadable: " + text}
	}
	var names []string
	for _, network := range networks.Elements() {
		names = append(names, cmp.Or(network.Namespace, namespace)+"/"+network.Name)
	}
	return names
}

// devicesOf are the extended resources of a list: what is not Kubernetes' own.
func devicesOf(list corev1.ResourceList) map[string]int64 {
	counts := map[string]int64{}
	for name, quantity := range list {
		if strings.Contains(string(name), "/") && quantity.Value() > 0 {
			counts[string(name)] = quantity.Value()
		}
	}
	return counts
}

// parseMock reads one line of the mock's request log.
func parseMock(line []byte) ([]event, error) {
	var r engine.Record
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, err
	}
	if r.Operation != "ensure" && r.Operation != "release" {
		return nil, nil
	}
	path, _, _ := strings.Cut(r.Path, "?")
	e := event{
		Kind: note, Source: fromMock, From: r.Time, To: r.Time.Add(time.Duration(r.DurationMillis+1) * time.Millisecond),
		UID:  path[strings.LastIndex(path, "/")+1:],
		Text: fmt.Sprintf("%s acted=%t status=%d sent=%d in %dms", r.Operation, r.Acted, r.Status, r.Sent, r.DurationMillis),
	}
	if r.Fault != nil {
		e.Fault = faultName(r.Fault)
		e.Text += ", fault: " + e.Fault
	}
	if r.Acted && r.Allocation != nil && r.Status/100 == 2 {
		e.Kind = released
		if r.Operation == "ensure" {
			e.Kind = ensured
		}
		e.Node, e.Pod = r.Allocation.Node, r.Allocation.Namespace+"/"+r.Allocation.Pod
		for _, network := range r.Allocation.Networks {
			e.Networks = append(e.Networks, network.Namespace+"/"+network.Name)
			e.Pools = append(e.Pools, network.Pool)
		}
	}
	return []event{e}, nil
}

// faultName is the kind of a rule of the mock's.
func faultName(f *engine.Fault) string {
	switch {
	case f.DropRequest:
		return "request lost"
	case f.DropReply:
		return f.Operation + "'s reply lost"
	case f.Status != 0 && f.RetryAfterSeconds > 0:
		return fmt.Sprintf("status %d with Retry-After", f.Status)
	case f.Status != 0:
		return fmt.Sprintf("status %d %s", f.Status, http.StatusText(f.Status))
	case f.Body != "":
		return f.Body + " body"
	case f.Networks != "":
		return "networks " + f.Networks
	case f.Hold:
		return "held"
	}
	return "slow"
}
