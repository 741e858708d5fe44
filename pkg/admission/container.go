package admission

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"tenant.network/tenant-webhook/pkg/pools"
	"tenant.network/tenant-webhook/pkg/rdma"
)

// eachContainer calls f for every init container and container.
func eachContainer(pod *corev1.Pod, f func(c *corev1.Container, at place)) {
	for i := range pod.Spec.InitContainers {
		f(&pod.Spec.InitContainers[i], place{list: initContainers, index: i})
	}
	for i := range pod.Spec.Containers {
		f(&pod.Spec.Containers[i], place{list: "containers", index: i})
	}
}

const initContainers = "initContainers"

// place is where a container stands in a pod.
type place struct {
	list  string
	index int
}

// child is the path of an entry of the container's requests or limits.
func (p place) child(of string, name corev1.ResourceName) *field.Path {
	return field.NewPath("spec", p.list).Index(p.index).Child("resources", of).Key(string(name))
}

// normalize makes requests and limits of configured pools equal where the user wrote only one of them: the API accepts
// extended resources in no other form (k8s.io/kubernetes pkg/apis/core/validation, ValidateContainerResourceRequirements).
// What is no number of devices is refused here: the API server would only see what becomes of it.
func normalize(pod *corev1.Pod, cfg *pools.Config) field.ErrorList {
	var errs field.ErrorList
	eachContainer(pod, func(c *corev1.Container, at place) {
		for _, pool := range cfg.Pools {
			request, requested := c.Resources.Requests[pool.Name]
			limit, limited := c.Resources.Limits[pool.Name]
			switch {
			case requested && limited && request.Cmp(limit) != 0:
				errs = append(errs, field.Invalid(at.child("requests", pool.Name), request.String(),
					fmt.Sprintf("must equal the limit %q: devices cannot be overcommitted", limit.String())))
			case limited && !isDevices(limit):
				errs = append(errs, notDevices(at.child("limits", pool.Name), limit))
			case requested && !isDevices(request):
				errs = append(errs, notDevices(at.child("requests", pool.Name), request))
			case requested && !limited:
				set(&c.Resources.Limits, pool.Name, request)
			case limited && !requested:
				set(&c.Resources.Requests, pool.Name, limit)
			}
		}
	})
	return errs
}

func isDevices(quantity resource.Quantity) bool {
	return quantity.Sign() >= 0 && quantity.CmpInt64(quantity.Value()) == 0 // Value rounds up, and ends at int64
}

func notDevices(path *field.Path, quantity resource.Quantity) *field.Error {
	return field.Invalid(path, quantity.String(), `must be a whole number of devices, such as "1"`)
}

func set(list *corev1.ResourceList, name corev1.ResourceName, quantity resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = quantity
}

// pin finds the pools that the containers request already: that is how a user names a pool, and what makes a second
// pass over our own output change nothing.
func pin(pod *corev1.Pod, cfg *pools.Config, intent rdma.Intent) (map[rdma.Type]corev1.ResourceName, field.ErrorList) {
	if len(intent) == 0 || !mentionsPool(pod, cfg) {
		return nil, nil
	}
	requests := rdma.Requests(pod)
	var present []corev1.ResourceName
	for _, pool := range cfg.Pools {
		quantity := requests[pool.Name]
		serves := slices.ContainsFunc(intent, func(a rdma.Ask) bool { return slices.Contains(pool.Types, a.Type) })
		if quantity.Sign() > 0 && serves {
			present = append(present, pool.Name)
		}
	}
	if len(present) == 0 {
		return nil, nil
	}
	candidates := pinnings(cfg, intent, present)
	candidates = slices.DeleteFunc(candidates, func(a rdma.Assignment) bool {
		return slices.ContainsFunc(present, func(pool corev1.ResourceName) bool { return a.Total(pool) == 0 })
	})
	path := field.NewPath("spec", "containers")
	if len(candidates) == 0 {
		return nil, field.ErrorList{field.Invalid(path, quoteNames(present),
			fmt.Sprintf("the containers request %d pools for %d types; accepted is one pool for each of rdma.vf and rdma.pf", len(present), len(intent)))}
	}
	best := slices.MinFunc(candidates, func(a, b rdma.Assignment) int {
		return rankPinning(pod, requests, a) - rankPinning(pod, requests, b)
	})
	pinned := map[rdma.Type]corev1.ResourceName{}
	for _, e := range best {
		if over := requests[e.Pool]; over.CmpInt64(best.Total(e.Pool)) > 0 {
			return nil, field.ErrorList{tooMany(pod, e, over, best.Total(e.Pool))}
		}
		pinned[e.Type] = e.Pool
	}
	return pinned, nil
}

// mentionsPool reports whether anything in the pod requests a configured pool.
func mentionsPool(pod *corev1.Pod, cfg *pools.Config) bool {
	found := false
	look := func(list corev1.ResourceList) {
		for name := range list {
			_, configured := cfg.Lookup(name)
			found = found || configured
		}
	}
	look(pod.Spec.Overhead)
	if pod.Spec.Resources != nil {
		look(pod.Spec.Resources.Requests)
	}
	eachContainer(pod, func(c *corev1.Container, _ place) { look(c.Resources.Requests) })
	return found
}

// pinnings lists the ways in which the types can be served from the pools that are present; a type may also stay open.
func pinnings(cfg *pools.Config, intent rdma.Intent, present []corev1.ResourceName) []rdma.Assignment {
	all := []rdma.Assignment{nil}
	for _, ask := range intent {
		var next []rdma.Assignment
		for _, head := range all {
			for _, name := range present {
				if pool, _ := cfg.Lookup(name); slices.Contains(pool.Types, ask.Type) {
					next = append(next, append(slices.Clone(head), rdma.Entry{Type: ask.Type, Pool: name, Count: ask.Count}))
				}
			}
			next = append(next, head)
		}
		all = next
	}
	return all
}

// rankPinning prefers, in this order: pools that hold what is requested, pools that hold exactly that, and what an
// earlier pass wrote down. The earlier pass only breaks ties, since anybody can write annotations.
func rankPinning(pod *corev1.Pod, requests corev1.ResourceList, a rdma.Assignment) int {
	rank := 0
	for _, pool := range a.Pools() {
		quantity := requests[pool]
		switch quantity.CmpInt64(a.Total(pool)) {
		case 1:
			rank += 100
		case -1:
			rank += 10
		}
	}
	if a.Annotations()[rdma.ResourcePoolAnnotation] != pod.Annotations[rdma.ResourcePoolAnnotation] {
		rank++
	}
	return rank
}

func tooMany(pod *corev1.Pod, e rdma.Entry, requested resource.Quantity, wanted int64) *field.Error {
	return field.Invalid(annotationPath(e.Type.Annotation()), pod.Annotations[e.Type.Annotation()],
		fmt.Sprintf("the pod requests %s of %s, but the annotations ask for %d; accepted are requests of at most the number in the annotation, init containers and overhead included", requested.String(), e.Pool, wanted))
}

// fill brings the pod's requests to exactly what the assignment says, by adding what is missing to one container.
func fill(pod *corev1.Pod, assignment rdma.Assignment, sidecars []string) field.ErrorList {
	for _, e := range assignment {
		want := assignment.Total(e.Pool)
		if missing := want - running(pod, e.Pool); missing > 0 {
			c := target(pod, e.Pool, sidecars)
			has := c.Resources.Requests[e.Pool]
			quantity := *resource.NewQuantity(has.Value()+missing, resource.DecimalSI)
			set(&c.Resources.Requests, e.Pool, quantity)
			set(&c.Resources.Limits, e.Pool, quantity)
		}
		if got := rdma.Request(pod, e.Pool); got.CmpInt64(want) != 0 {
			return field.ErrorList{tooMany(pod, e, got, want)}
		}
	}
	return nil
}

// running returns what the containers that run side by side request of the pool: containers and sidecars.
func running(pod *corev1.Pod, pool corev1.ResourceName) int64 {
	var total int64
	eachContainer(pod, func(c *corev1.Container, at place) {
		if at.list != initContainers || c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			quantity := c.Resources.Requests[pool]
			total += quantity.Value()
		}
	})
	return total
}

// target returns the container that gets the devices: the one that the user names, one that asks for the pool already,
// the first that is no known sidecar (meshes put theirs first), or the first. One container gets all of them, since
// Multus does not promise which device of a pool goes to which network.
func target(pod *corev1.Pod, pool corev1.ResourceName, sidecars []string) *corev1.Container {
	containers := pod.Spec.Containers
	if name, ok := pod.Annotations[rdma.ContainerAnnotation]; ok {
		return &containers[slices.Index(containerNames(pod), name)]
	}
	i := slices.IndexFunc(containers, func(c corev1.Container) bool {
		quantity := c.Resources.Requests[pool]
		return quantity.Sign() > 0
	})
	if i < 0 {
		i = slices.IndexFunc(containers, func(c corev1.Container) bool { return !slices.Contains(sidecars, c.Name) })
	}
	return &containers[max(i, 0)]
}
