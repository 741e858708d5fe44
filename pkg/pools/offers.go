package pools

// offers are the nodes that have a pool in their allocatable or capacity. Eligible nodes with devices that are free, or
// will be when pods being deleted are gone, stand first: a choice looks at no others, and so costs little in a cluster
// that is full.
type offers struct {
	list []offer
	at   map[*nodeState]int
	// open is how many of the list stand first.
	open int
	// capacities are those of the nodes in the list.
	capacities sizes
}

// offer is what one node has left of the pool. Both figures are 0 on a node that is not eligible.
type offer struct {
	node *nodeState
	// free can be used now; eventually adds what pods being deleted hold.
	free, eventually int64
}

func (o *offers) set(e offer) {
	i, ok := o.at[e.node]
	if !ok {
		i = len(o.list)
		o.list = append(o.list, e)
		o.at[e.node] = i
	}
	o.list[i] = e
	switch isOpen := e.eventually > 0; {
	case isOpen && i >= o.open:
		o.swap(i, o.open)
		o.open++
	case !isOpen && i < o.open:
		o.open--
		o.swap(i, o.open)
	}
}

func (o *offers) remove(n *nodeState) {
	i, ok := o.at[n]
	if !ok {
		return
	}
	if i < o.open {
		o.open--
		o.swap(i, o.open)
		i = o.open
	}
	last := len(o.list) - 1
	o.swap(i, last)
	o.list[last] = offer{}
	o.list = o.list[:last]
	delete(o.at, n)
}

func (o *offers) swap(i, j int) {
	if i == j {
		return
	}
	o.list[i], o.list[j] = o.list[j], o.list[i]
	o.at[o.list[i].node], o.at[o.list[j].node] = i, j
}
