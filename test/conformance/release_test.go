package conformance

import (
	"net/http"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var wrongReleases = []wrongImplementation{
	{"answers a release and keeps the allocation", func(x *exchange) {
		before := x.present()
		x.do()
		if x.isDelete() && x.status == http.StatusNoContent && before != nil {
			x.e.Restore([]tenant.Allocation{*before})
		}
	}, "release/releases cleanup"},
	{"wants a generation for a release", func(x *exchange) {
		if x.isDelete() && x.query["cluster"] != "" && (x.query["generation"] == "" || x.query["generation"] == "0") && x.query["minAgeSeconds"] == "" && x.present() != nil {
			x.say(http.StatusConflict, tenant.Problem{Reason: tenant.ReasonStaleGeneration, Detail: "0", Allocation: x.present()})
			return
		}
		x.do()
	}, "release/any"},
	{"has never heard of an allocation that is gone", func(x *exchange) {
		if x.isDelete() && x.query["cluster"] != "" && x.present() == nil {
			x.say(http.StatusNotFound, nil)
			return
		}
		x.do()
	}, "release/again"},
	{"calls a late release stale", func(x *exchange) {
		if x.isDelete() && x.query["cluster"] != "" && x.present() == nil && x.query["generation"] != "" {
			x.say(http.StatusConflict, tenant.Problem{Reason: tenant.ReasonStaleGeneration, Detail: "gone"})
			return
		}
		x.do()
	}, "release/again"},
	{"releases for a stale generation", func(x *exchange) {
		x.dropPositive("generation")
		x.do()
	}, "release/stale"},
	{"releases another cluster's", func(x *exchange) {
		x.do()
		if x.isDelete() && x.status == http.StatusNoContent {
			x.e.Forget(x.uid)
		}
	}, "release/other-cluster"},
	{"ignores minAgeSeconds", func(x *exchange) {
		x.dropPositive("minAgeSeconds")
		x.do()
	}, "release/too-young"},
	{"takes every allocation for too young", func(x *exchange) {
		if x.query["minAgeSeconds"] == "1" {
			x.query["minAgeSeconds"] = "3600"
		}
		x.do()
	}, "release/old-enough"},
	{"compares the age first and releases later", func(x *exchange) {
		if a := x.present(); x.query["minAgeSeconds"] == "1" && a != nil && a.AgeSeconds >= 1 {
			x.meanwhile("release/one-step")
			delete(x.query, "minAgeSeconds")
		}
		x.do()
	}, "release/one-step"},
}
