package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var wrongEnsures = []wrongImplementation{
	{"says that it is ill", func(x *exchange) {
		x.do()
		if x.path == healthPath {
			x.status = http.StatusNotFound
		}
	}, "healthz"},
	{"makes one network too few", edited(func(a *tenant.Allocation) { a.Networks = a.Networks[1:] }), makes},
	{"makes one network too many", edited(func(a *tenant.Allocation) {
		extra := a.Networks[0]
		extra.Name += "-extra"
		a.Networks = append(a.Networks, extra)
	}), makes},
	{"makes networks in the tenant's namespace", edited(func(a *tenant.Allocation) {
		for i := range a.Networks {
			a.Networks[i].Namespace = "tenants"
		}
	}), makes},
	{"answers the networks in another order", edited(func(a *tenant.Allocation) { slices.Reverse(a.Networks) }), "ensure/order"},
	{"gives all pods the same networks", edited(func(a *tenant.Allocation) {
		for i := range a.Networks {
			a.Networks[i].Name = "net-" + strconv.Itoa(i)
		}
	}), "ensure/unique"},
	{"names networks by the pod UID alone", edited(func(a *tenant.Allocation) {
		for i := range a.Networks {
			a.Networks[i].Name = fmt.Sprintf("net-%s-%d", a.PodUID, i)
		}
	}), "ensure/two-clusters"},
	{"is not idempotent: a second ensure gives other networks", func(x *exchange) {
		second := x.isEnsure() && x.present() != nil
		x.do()
		if second && x.status == http.StatusOK {
			x.edit(func(a *tenant.Allocation) { a.Networks[0].Name += "-2" })
		}
	}, idempotent},
	{"counts every ensure as a change", func(x *exchange) {
		if a := x.present(); x.isEnsure() && a != nil && a.Node == x.ask.Node && (x.ask.Generation == 0 || x.ask.Generation == a.Generation) {
			node := x.ask.Node
			x.resend(func(ask *tenant.EnsureRequest) { ask.Node, ask.Generation = node+"-", a.Generation })
			x.do()
			if x.status != http.StatusOK {
				return // the pod has changed
			}
			present := x.present().Generation
			x.resend(func(ask *tenant.EnsureRequest) { ask.Node, ask.Generation = node, present })
		}
		x.do()
	}, idempotent},
	{"looks first and makes later", func(x *exchange) {
		if x.isEnsure() && x.ask.Generation == 0 && x.present() == nil {
			x.meanwhile("ensure/burst")
			_, _ = x.e.Release(x.ctx, x.cluster(), x.uid, 0) // overwrites what another ask has made
		}
		x.do()
	}, "ensure/burst"},
	{"moves the allocation to a later tenant", func(x *exchange) {
		x.do()
		if x.isEnsure() {
			x.edit(func(a *tenant.Allocation) { a.Tenant = x.ask.Tenant })
		}
	}, "ensure/tenant"},
	{"refuses fields that it does not know", func(x *exchange) {
		if strings.Contains(string(x.body), "aFieldOfALaterContract") {
			x.say(http.StatusBadRequest, tenant.Problem{Reason: "Invalid", Detail: "unknown field"})
			return
		}
		x.do()
	}, "ensure/unknown-field"},
	{"answers 200 for a pod that has changed", func(x *exchange) {
		x.do()
		if x.status == http.StatusUnprocessableEntity && x.present() != nil {
			x.say(http.StatusOK, x.present())
		}
	}, "ensure/pod-changed"},
	{"calls a pod that has changed a conflict", func(x *exchange) {
		x.do()
		if x.status == http.StatusUnprocessableEntity && x.present() != nil {
			x.status = http.StatusConflict
		}
	}, "ensure/pod-changed"},
	{"loses an allocation that nobody has asked about for 200 requests", losesState(200), "allocation/lives"},
}

func losesState(after int) func(*exchange) {
	asked := map[types.UID]int{}
	requests := 0
	return func(x *exchange) {
		requests++
		if x.uid != "" {
			asked[x.uid] = requests
		}
		for uid, last := range asked {
			if requests-last > after {
				x.e.Forget(uid)
			}
		}
		x.do()
	}
}
