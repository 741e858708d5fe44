package conformance

import (
	"net/http"
	"time"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var wrongAges = []wrongImplementation{
	{"knows no age", edited(func(a *tenant.Allocation) { a.AgeSeconds = 0 }), "age/grows"},
	{"rounds the age up", edited(func(a *tenant.Allocation) { a.AgeSeconds++ }), "age/grows"},
	{"touches the age when it is read", func(x *exchange) {
		x.do()
		if x.isRead() {
			touch(x)
		}
	}, "age/read"},
	{"touches the age when it refuses", func(x *exchange) {
		x.do()
		if x.isEnsure() && x.status == http.StatusConflict {
			touch(x)
		}
	}, "age/refused"},
	{"never resets the age", ageSinceTheFirst(func(*exchange) bool { return true }), "age/resets"},
	{"resets the age in the answer only", ageSinceTheFirst(func(x *exchange) bool { return !x.isEnsure() }), "age/resets"},
}

// ageSinceTheFirst shows the time since the first ensure in the answers that match.
func ageSinceTheFirst(matches func(*exchange) bool) func(*exchange) {
	first := map[string]time.Time{}
	return func(x *exchange) {
		x.do()
		if _, known := first[x.key()]; x.isEnsure() && !known {
			first[x.key()] = time.Now()
		}
		if x.isDelete() && x.status == http.StatusNoContent {
			delete(first, x.key())
		}
		if matches(x) {
			x.edit(func(a *tenant.Allocation) {
				a.AgeSeconds = int64(time.Since(first[a.Cluster+"/"+string(a.PodUID)]) / time.Second)
			})
		}
	}
}

// touch ensures once more what is there.
func touch(x *exchange) {
	if a := x.present(); a != nil {
		_, _ = x.e.Ensure(x.ctx, a.PodUID, tenant.EnsureRequest{
			Cluster: a.Cluster, Namespace: a.Namespace, Pod: a.Pod, Tenant: a.Tenant, Node: a.Node, Requests: a.Requests,
		})
	}
}
