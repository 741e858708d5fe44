package conformance

import (
	"encoding/json"
	"net/http"
	"strings"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var wrongRefusals = []wrongImplementation{
	{"makes networks for half a body", func(x *exchange) {
		x.do()
		if half, ok := strings.CutPrefix(string(x.body), `{"cluster":"`); ok && refusedEnsure(x) && !json.Valid(x.body) {
			x.ask.Cluster, _, _ = strings.Cut(half, `"`)
			makeOne(x)
		}
	}, "invalid/json"},
	{"makes networks without a tenant", func(x *exchange) {
		if x.isEnsure() && x.ask.Tenant == "" && x.ask.Namespace != "" {
			x.resend(func(ask *tenant.EnsureRequest) { ask.Tenant = ask.Namespace })
		}
		x.do()
	}, "invalid/fields"},
	{"makes networks and answers that it does not", func(x *exchange) {
		x.do()
		if refusedEnsure(x) && len(x.ask.Requests) > 0 && x.ask.Requests[0].Count == 0 {
			makeOne(x)
		}
	}, "invalid/requests"},
	{"makes one network for a count of 0", func(x *exchange) {
		if x.isEnsure() && len(x.ask.Requests) > 0 && x.ask.Requests[0].Count == 0 && x.ask.Pod != "" && x.ask.Node != "" && x.ask.Namespace != "" && x.ask.Tenant != "" {
			x.resend(func(ask *tenant.EnsureRequest) { ask.Requests[0].Count = 1 })
		}
		x.do()
	}, "invalid/requests"},
	{"takes what it can for a count that it cannot serve", func(x *exchange) {
		if x.isEnsure() && len(x.ask.Requests) > 0 && x.ask.Requests[0].Count > 500 {
			x.resend(func(ask *tenant.EnsureRequest) { ask.Requests[0].Count = 500 })
		}
		x.do()
	}, "invalid/huge"},
	{"cuts a pod UID to what fits", func(x *exchange) {
		if len(x.uid) > 63 {
			x.uid = x.uid[:63]
			x.path = allocationsPath + "/" + string(x.uid)
		}
		x.do()
	}, "invalid/uid"},
	{"releases without a cluster", func(x *exchange) {
		if x.isDelete() && x.query["cluster"] == "" {
			x.e.Forget(x.uid)
			x.say(http.StatusNoContent, nil)
			return
		}
		x.do()
	}, "invalid/query"},
	{"refuses and does not say why", func(x *exchange) {
		x.do()
		if x.status == http.StatusBadRequest {
			x.say(x.status, tenant.Problem{Status: x.status, Detail: "no"})
		}
	}, "invalid/json invalid/fields invalid/requests invalid/huge invalid/uid invalid/query"},
	{"answers 404 without a problem", func(x *exchange) {
		x.do()
		if x.isRead() && x.status == http.StatusNotFound {
			x.say(x.status, nil)
			x.header.Set("Content-Type", "text/plain")
		}
	}, notFound},
	{"sends problems as plain JSON", func(x *exchange) {
		x.do()
		if x.status >= 400 {
			x.header.Set("Content-Type", "application/json")
		}
	}, "errors/problem"},
	{"has another status in the problem than it sends", func(x *exchange) {
		x.do()
		x.answer = []byte(strings.ReplaceAll(string(x.answer), `"status":422`, `"status":400`))
	}, "errors/problem"},
}

func refusedEnsure(x *exchange) bool {
	return x.isEnsure() && x.status == http.StatusBadRequest && x.present() == nil
}

// makeOne makes a network, whatever was asked for.
func makeOne(x *exchange) {
	if x.cluster() == "" {
		return
	}
	_, _ = x.e.Ensure(x.ctx, x.uid, tenant.EnsureRequest{
		Cluster: x.cluster(), Namespace: "n", Pod: "p", Tenant: "t", Node: "n", Requests: []tenant.Request{{Type: "vf", Pool: "p", Count: 1}},
	})
}
