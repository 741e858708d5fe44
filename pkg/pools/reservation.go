package pools

import (
	"time"

	"tenant.network/tenant-webhook/pkg/rdma"
)

// reservation bridges the time between a pod's admission and its appearance in the informer.
type reservation struct {
	devices Counts
	// name is the pod's namespace/name, empty where the API server makes the name up later.
	name    string
	group   Group
	expires time.Time
}

// reservations are keyed by admission id: a pod under admission has no UID and often no name, and a webhook request's
// UID is new on every call.
type reservations struct {
	byID map[string]reservation
	// byName holds the id of the last reservation made for a name.
	byName map[string]string
	// order holds the ids as they were made or renewed. An id may stand there after its reservation ended.
	order    []deadline
	reserved unplaced
}

type deadline struct {
	id string
	at time.Time
}

func newReservations() reservations {
	return reservations{byID: map[string]reservation{}, byName: map[string]string{}, reserved: unplaced{}}
}

// reserve keeps the assignment's devices in mind until the pod appears or the time is over. A second pass over the same
// admission replaces the first.
func (l *Ledger) reserve(d Demand, assignment rdma.Assignment, lifetime time.Duration) {
	l.endReservation(d.AdmissionID)
	r := reservation{devices: Counts{}, name: d.Name, group: d.Group, expires: l.now().Add(lifetime)}
	for _, e := range assignment {
		r.devices[e.Pool] += e.Count
	}
	l.byID[d.AdmissionID] = r
	if d.Name != "" {
		l.byName[d.Name] = d.AdmissionID
	}
	l.order = append(l.order, deadline{d.AdmissionID, r.expires})
	l.reserved.add(r.devices, 1)
	l.joinGroup(d.Group, reservationMember(d.AdmissionID), assignment, false)
}

// endPredecessor ends the reservation of an earlier attempt to create a pod of the same name. As a rule that attempt failed
// after admission, at a quota for example; if it made the pod after all, this one fails and the informer shows the pod in
// a moment. Without this a loop that tries again and again would reserve the pool away from everybody else.
func (l *Ledger) endPredecessor(d Demand) {
	if id, ok := l.byName[d.Name]; ok && d.AdmissionID != "" && id != d.AdmissionID {
		l.endReservation(id)
	}
}

// CancelReservation gives back what Choose reserved for an admission that came to nothing.
func (l *Ledger) CancelReservation(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endReservation(id)
}

func (l *Ledger) endReservation(id string) {
	r, ok := l.byID[id]
	if !ok {
		return
	}
	delete(l.byID, id)
	if l.byName[r.name] == id {
		delete(l.byName, r.name)
	}
	l.reserved.add(r.devices, -1)
	l.leaveGroup(r.group, reservationMember(id))
}

// expire ends the reservations whose time is over. They are looked at in the order in which they were made, so one made
// with a longer lifetime, before the configuration changed, holds back those behind it for that long.
func (l *Ledger) expire() {
	now := l.now()
	for len(l.order) > 0 {
		next := l.order[0]
		if r, ok := l.byID[next.id]; ok && now.Before(next.at) {
			return
		} else if ok && !now.Before(r.expires) { // else it was renewed, and stands further behind again
			l.endReservation(next.id)
		}
		l.order = l.order[1:]
	}
}

func reservationMember(id string) string { return "admission/" + id }

// member is a pod of a group, or an admission that is about to become one.
type member struct{ assignment rdma.Assignment }

// joinGroup notes the pool that a member holds. A member that is being deleted no longer binds the group to its pool:
// when a whole gang is recreated under its name, the new one is free to choose.
func (l *Ledger) joinGroup(group Group, id string, assignment rdma.Assignment, deleting bool) {
	if group == (Group{}) || assignment == nil || deleting {
		return
	}
	if l.groups[group] == nil {
		l.groups[group] = map[string]member{}
	}
	l.groups[group][id] = member{assignment: assignment}
}

func (l *Ledger) leaveGroup(group Group, id string) {
	if members, ok := l.groups[group]; ok {
		delete(members, id)
		if len(members) == 0 {
			delete(l.groups, group)
		}
	}
}
