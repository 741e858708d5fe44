package conformance

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"tenant.network/tenant-webhook/pkg/tenant"
)

var wrongLists = []wrongImplementation{
	{"misses a page", func(x *exchange) {
		x.do()
		var list tenant.AllocationList
		if x.isList() && x.status == http.StatusOK && x.query["continue"] != "" && json.Unmarshal(x.answer, &list) == nil {
			list.Continue = "" // the second is the last
			x.say(x.status, list)
		}
	}, complete},
	{"misses the last of a page", func(x *exchange) {
		if x.isList() && x.query["limit"] == "3" {
			x.query["limit"] = "4"
		}
		x.do()
		var list tenant.AllocationList
		if x.isList() && x.query["limit"] == "4" && json.Unmarshal(x.answer, &list) == nil {
			list.Allocations = list.Allocations[:min(len(list.Allocations), 3)]
			x.say(x.status, list)
		}
	}, complete},
	{"ignores the limit", func(x *exchange) {
		if x.isList() && x.query["limit"] != "0" && x.query["limit"] != "many" {
			delete(x.query, "limit")
		}
		x.do()
	}, complete},
	{"shows an older allocation in the list", func(x *exchange) {
		x.do()
		if x.isList() {
			x.edit(func(a *tenant.Allocation) { a.Generation-- })
		}
	}, complete},
	{"answers null for an empty list", func(x *exchange) {
		x.do()
		if x.isList() && x.status == http.StatusOK {
			x.answer = []byte(strings.ReplaceAll(string(x.answer), `"allocations":[]`, `"allocations":null`))
		}
	}, "list/empty"},
	{"shows another cluster's allocation", listsNeighbours(), "list/cluster"},
	{"pages by numbers", pagesByNumbers, "list/stable"},
}

// listsNeighbours adds the latest allocation of another cluster to full pages of two and more.
func listsNeighbours() func(*exchange) {
	clusters := map[string]*tenant.Allocation{}
	return func(x *exchange) {
		x.do()
		if a := x.present(); x.isEnsure() && a != nil {
			clusters[x.cluster()] = a
		}
		var list tenant.AllocationList
		if !x.isList() || json.Unmarshal(x.answer, &list) != nil || len(list.Allocations) != 3 || list.Continue != "" {
			return
		}
		for cluster, a := range clusters {
			if cluster != x.cluster() {
				list.Allocations = append(list.Allocations, *a)
				x.say(x.status, list)
				return
			}
		}
	}
}

// pagesByNumbers continues after as many allocations as it has shown.
func pagesByNumbers(x *exchange) {
	limit, err := strconv.Atoi(x.query["limit"])
	if !x.isList() || err != nil || limit < 1 {
		x.do()
		return
	}
	all, _ := x.e.List(x.cluster(), "", 500)
	from, _ := strconv.Atoi(x.query["continue"])
	from = min(from, len(all))
	to := min(from+limit, len(all))
	list := tenant.AllocationList{Allocations: all[from:to]}
	if to < len(all) {
		list.Continue = strconv.Itoa(to)
	}
	x.say(http.StatusOK, list)
}
