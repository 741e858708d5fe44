package pools

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// unplaced is requests that have no node yet, of pods or of reservations, by pool. Absent means none.
type unplaced map[corev1.ResourceName]asked

// asked is what is asked of one pool.
type asked struct {
	// devices is all of it.
	devices int64
	// requests is the same by the size of the requests.
	requests sizes
}

// add adds or takes away, by its sign, the requests of one pod. Pools of which nothing is asked are dropped, so that equal
// states are equal maps.
func (u unplaced) add(devices Counts, sign int64) {
	for pool, count := range devices {
		a := u[pool]
		a.devices += sign * count
		a.requests = a.requests.add(count, sign)
		if a.devices == 0 && len(a.requests) == 0 {
			delete(u, pool)
		} else {
			u[pool] = a
		}
	}
}

// differing counts the pools of which something else is asked.
func (u unplaced) differing(other unplaced) int {
	wrong := 0
	for pool, a := range u {
		if b := other[pool]; a.devices != b.devices || !slices.Equal(a.requests, b.requests) {
			wrong++
		}
	}
	for pool := range other {
		if _, ok := u[pool]; !ok {
			wrong++
		}
	}
	return wrong
}

// sizes says how many there are of each number of devices, the smallest number first. It is a slice and not a map so that a
// choice costs little whatever tenants ask for: it stops at the largest node's size, and there are no more sizes below
// that than a node has devices.
type sizes []size

type size struct{ devices, times int64 }

func (s sizes) add(devices, times int64) sizes {
	i, found := slices.BinarySearchFunc(s, devices, func(e size, devices int64) int { return cmp.Compare(e.devices, devices) })
	if !found {
		return slices.Insert(s, i, size{devices, times})
	}
	if s[i].times += times; s[i].times == 0 {
		return slices.Delete(s, i, i+1)
	}
	return s
}

func (s sizes) sum(most int64) int64 {
	var sum int64
	for _, e := range s {
		if e.devices > most {
			break
		}
		sum += e.devices * e.times
	}
	return sum
}

func (s sizes) largest() int64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].devices
}
