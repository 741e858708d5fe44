package engine

import (
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
)

// The mock's own paths. They are no part of the contract, are never faulted and never in the request log.

func (e *Engine) getFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, e.Faults())
}

func (e *Engine) putFaults(w http.ResponseWriter, r *http.Request) {
	var rules []Fault
	if err := decodeControl(w, r, &rules); err != nil {
		refuse(w, err)
		return
	}
	if err := e.SetFaults(rules); err != nil {
		refuse(w, err)
		return
	}
	writeJSON(w, http.StatusOK, e.Faults())
}

func (e *Engine) deleteFaults(w http.ResponseWriter, _ *http.Request) {
	if err := e.SetFaults(nil); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// postForget wants one pod UID or, in so many words, all.
func (e *Engine) postForget(w http.ResponseWriter, r *http.Request) {
	var what struct {
		PodUID types.UID `json:"podUID"`
		All    bool      `json:"all"`
	}
	if err := decodeControl(w, r, &what); err != nil {
		refuse(w, err)
		return
	}
	if (what.PodUID == "") != what.All {
		refuse(w, malformed("either podUID or all"))
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"forgotten": e.Forget(what.PodUID)})
}

func decodeControl(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := readBody(w, r)
	if err != nil {
		return malformed("reading the body: %v", err)
	}
	return decodeStrictly(body, into)
}

func refuse(w http.ResponseWriter, err error) {
	x := &exchange{}
	var refusal *RefusalError
	if !errors.As(err, &refusal) {
		refusal = malformed("%v", err)
	}
	x.fail(refusal)
	x.write(w)
}
