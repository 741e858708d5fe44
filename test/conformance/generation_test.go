package conformance

import (
	"encoding/json"
	"net/http"
	"strconv"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var wrongGenerations = []wrongImplementation{
	{"moves for generation 0", accept(func(x *exchange, _ *tenant.Allocation) bool { return x.ask.Generation == 0 }), zero},
	{"moves for a stale generation", accept(func(x *exchange, _ *tenant.Allocation) bool { return x.ask.Generation != 0 }), stale},
	{"takes a generation from the future", accept(func(x *exchange, a *tenant.Allocation) bool { return x.ask.Generation > a.Generation }), stale},
	{"makes networks for an unknown pod with a generation", acceptUnknown, "generation/unknown"},
	{"ignores the generation", func(x *exchange) {
		x.dropPositive("generation")
		if x.isEnsure() && x.present() == nil {
			acceptUnknown(x)
			return
		}
		accept(func(*exchange, *tenant.Allocation) bool { return true })(x)
	}, "generation/zero generation/stale generation/unknown release/stale"},
	{"shows no allocation with a conflict", func(x *exchange) {
		x.do()
		var problem tenant.Problem
		if x.status == http.StatusConflict && json.Unmarshal(x.answer, &problem) == nil && x.isEnsure() {
			problem.Allocation = nil
			x.say(x.status, problem)
		}
	}, "generation/zero generation/stale"},
	{"gives other networks for another node", edited(func(a *tenant.Allocation) {
		if a.Node != "conformance-node-1" {
			a.Networks[0].Name += "-" + a.Node
		}
	}), moves},
	{"moves without a new generation", keepsGeneration(), moves},
	{"moves again what has moved", func(x *exchange) {
		if a := x.present(); x.isEnsure() && a != nil && a.Node == x.ask.Node && x.ask.Generation != 0 && x.ask.Generation == a.Generation-1 {
			x.resend(func(ask *tenant.EnsureRequest) { ask.Generation, ask.Node = a.Generation, a.Node+"-" })
		}
		x.do()
	}, "generation/repeat"},
	{"looks at the generation first and moves later", func(x *exchange) {
		if a := x.present(); x.isEnsure() && a != nil && x.ask.Generation == a.Generation {
			x.meanwhile("generation/race")
			present := x.present().Generation
			x.resend(func(ask *tenant.EnsureRequest) { ask.Generation = present })
		}
		x.do()
	}, "generation/race"},
	{"counts from 1 again after a release", countsAgain(), "release/new-generation"},
}

// keepsGeneration shows the first generation of an allocation for ever.
func keepsGeneration() func(*exchange) {
	first := map[string]int64{}
	return func(x *exchange) {
		if a := x.present(); a != nil && x.ask.Generation != 0 && x.ask.Generation == first[x.key()] {
			x.resend(func(ask *tenant.EnsureRequest) { ask.Generation = a.Generation })
		}
		if x.isDelete() && x.present() == nil {
			delete(first, x.key())
		}
		x.do()
		x.edit(func(a *tenant.Allocation) {
			key := a.Cluster + "/" + string(a.PodUID)
			if first[key] == 0 {
				first[key] = a.Generation
			}
			a.Generation = first[key]
		})
	}
}

// countsAgain shows generations less the one before the allocation's first.
func countsAgain() func(*exchange) {
	before := map[string]int64{}
	return func(x *exchange) {
		known := x.present()
		if x.ask.Generation != 0 && known != nil {
			x.resend(func(ask *tenant.EnsureRequest) { ask.Generation += before[x.key()] })
		}
		if n, err := strconv.ParseInt(x.query["generation"], 10, 64); err == nil && n > 0 {
			x.query["generation"] = decimal(n + before[x.key()])
		}
		x.do()
		x.edit(func(a *tenant.Allocation) {
			key := a.Cluster + "/" + string(a.PodUID)
			if known == nil && x.isEnsure() {
				before[key] = a.Generation - 1
			}
			a.Generation -= before[key]
		})
	}
}

// accept gives the asks that match the present generation.
func accept(matches func(*exchange, *tenant.Allocation) bool) func(*exchange) {
	return func(x *exchange) {
		if a := x.present(); x.isEnsure() && a != nil && matches(x, a) {
			x.resend(func(ask *tenant.EnsureRequest) { ask.Generation = a.Generation })
		}
		x.do()
	}
}

// acceptUnknown takes any generation for a pod without an allocation.
func acceptUnknown(x *exchange) {
	if x.isEnsure() && x.present() == nil && x.ask.Generation > 0 {
		x.resend(func(ask *tenant.EnsureRequest) { ask.Generation = 0 })
	}
	x.do()
}
