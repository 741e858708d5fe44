package engine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/tenant"
)

// apply lets the contract act, and answers, as the fault rules will have it.
func (e *Engine) apply(w http.ResponseWriter, x *exchange, act func()) {
	fault, replaced := e.faults.take(x.operation, e.tenantOf(x))
	if fault == nil {
		act()
		x.write(w)
		return
	}
	x.record.Fault = fault
	if !e.delay(x, fault, replaced) || fault.DropRequest {
		cut()
	}
	if fault.Status != 0 {
		x.fail(&RefusalError{Status: fault.Status, Reason: "Fault", Detail: "a fault was asked for", RetryAfter: fault.RetryAfterSeconds})
		x.write(w)
		return
	}
	act()
	switch {
	case fault.DropReply:
		cut()
	case fault.Body != "":
		x.spoil(w, fault.Body)
	default:
		x.falsify(fault.Networks, e.foreignNetwork(x))
		x.write(w)
	}
}

// cut ends the connection; net/http takes this panic for no more than that.
func cut() { panic(http.ErrAbortHandler) }

// delay waits as the rule says. It returns false if the caller has gone meanwhile.
func (e *Engine) delay(x *exchange, fault *Fault, replaced <-chan struct{}) bool {
	gone := x.request.Context().Done()
	if fault.Hold {
		select {
		case <-replaced:
		case <-gone:
			return false
		}
	}
	if fault.LatencyMillis > 0 {
		select {
		case <-e.clock.After(time.Duration(fault.LatencyMillis) * time.Millisecond):
		case <-gone:
			return false
		}
	}
	return true
}

// tenantOf is the tenant that a request is about, as far as it can be told.
func (e *Engine) tenantOf(x *exchange) string {
	if x.operation == opEnsure {
		var ask tenant.EnsureRequest
		if json.Unmarshal(x.body, &ask) == nil {
			return ask.Tenant
		}
		return ""
	}
	k := key{x.request.URL.Query().Get("cluster"), types.UID(x.request.PathValue("podUID"))}
	if entry := e.get(k); entry != nil {
		return entry.allocation.Tenant
	}
	return ""
}

// spoil sends no JSON, or promises the answer and breaks off in the middle of it.
func (x *exchange) spoil(w http.ResponseWriter, how string) {
	x.record.Sent = max(x.status, http.StatusOK)
	if how == "garbage" {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusOK)
		x.record.Sent = http.StatusOK
		_, _ = w.Write([]byte("<html>not what you think</html>\n"))
		return
	}
	body, err := json.Marshal(x.answer)
	if err != nil || x.answer == nil {
		cut()
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(x.status)
	_, _ = w.Write(body[:len(body)/2])
	_ = http.NewResponseController(w).Flush() // or nothing at all would leave the machine
	cut()
}

// falsify changes the answer's networks. The allocation in the engine, and the one in the log, stay true.
func (x *exchange) falsify(how string, foreign tenant.Network) {
	allocation, ok := x.answer.(*tenant.Allocation)
	if !ok || allocation == nil || len(allocation.Networks) == 0 {
		return
	}
	changed := *allocation
	changed.Networks = slices.Clone(allocation.Networks)
	last := len(changed.Networks) - 1
	switch how {
	case "+1":
		extra := changed.Networks[last]
		extra.Name += "-extra"
		changed.Networks = append(changed.Networks, extra)
	case "-1":
		changed.Networks = changed.Networks[:last]
	case "duplicate":
		// With a single network there is nothing to be a duplicate of but itself.
		if last == 0 {
			changed.Networks = append(changed.Networks, changed.Networks[0])
		} else {
			changed.Networks[last] = changed.Networks[0]
		}
	case "foreign":
		foreign.Pool = changed.Networks[last].Pool // or the pool would give it away
		changed.Networks[last] = foreign
	case "wrongPool":
		changed.Networks[last].Pool = "example.com/wrong"
	case "wrongNamespace":
		changed.Networks[last].Namespace = "wrong-" + changed.Networks[last].Namespace
	}
	x.answer = &changed
}

// foreignNetwork is one of another pod, in the same namespace if there is one, or one that does not exist.
func (e *Engine) foreignNetwork(x *exchange) tenant.Network {
	own := x.record.Allocation
	if own == nil {
		return tenant.Network{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	found := tenant.Network{Namespace: own.Namespace, Name: "nad-foreign"}
	for k, entry := range e.allocations {
		if k.podUID == own.PodUID || len(entry.allocation.Networks) == 0 {
			continue
		}
		found = entry.allocation.Networks[0]
		if entry.allocation.Namespace == own.Namespace {
			break
		}
	}
	return found
}
