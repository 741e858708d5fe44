#!/usr/bin/env bash
# Tries every promise of the project on a cluster, without RDMA hardware, and cleans up.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: scripts/self-test.sh [--keep] [--timeout SECONDS] [OVERLAY]

Installs OVERLAY with scripts/deploy.sh where nothing is installed yet; an installation that it finds stays.
Where no node offers the pools, devices that do not exist are written onto one node for the time of the test.
Where no tenant-controller answers to the name in TENANT_CONTROLLER_URL, the mock is deployed for the time of the test.
Everything happens in namespaces of its own: rdma-self-test and rdma-self-test-plain.

  --keep       leave everything as it is at the end, to look at it
  --timeout    seconds that each wait may take, 120 without it

The environment variable KUBECTL names another kubectl. The exit code is 0 if every row has a ✓.
USAGE
}

readonly system=webhook-system
readonly ns=rdma-self-test
readonly plain_ns=rdma-self-test-plain
readonly finalizer=tenant.network/cleanup
readonly crd=network-attachment-definitions.k8s.cni.cncf.io
readonly user=rdma-self-test-user
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root
# shellcheck source=scripts/overlay.sh
source "$root/scripts/overlay.sh"
kubectl=${KUBECTL:-kubectl}

keep= timeout=120 overlay=
rows=() failed=0 undo=()
why= # what a check has to say when it fails

say() { printf 'self-test: %s\n' "$*"; }
die() {
  printf 'self-test: %s\n' "$*" >&2
  exit 1
}

parse() {
  while (($#)); do
    case $1 in
      --keep) keep=yes ;;
      --timeout)
        [[ ${2-} =~ ^[1-9][0-9]*$ ]] || die "--timeout: '${2-}' must be a number of seconds above 0"
        timeout=$2
        shift
        ;;
      -h | --help)
        usage
        exit 0
        ;;
      -*) die "unknown flag '$1'; see --help" ;;
      *)
        [[ -z $overlay ]] || die "one overlay only, not '$overlay' and '$1'"
        overlay=$1
        ;;
    esac
    shift
  done
}

exists() { [[ -n $("$kubectl" get "$@" --ignore-not-found -o name) ]]; }

eventually() {
  local end=$((SECONDS + timeout))
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.5
  done
}

# check NAME COMMAND... makes a row of the table.
check() {
  local name=$1
  shift
  why=
  if "$@"; then
    rows+=("✓ $name")
  else
    rows+=("✗ $name${why:+: $why}")
    failed=$((failed + 1))
  fi
  say "${rows[-1]}"
}

# --- what is needed, and undone at the end ---

prepare() {
  command -v "$kubectl" >/dev/null || die "$kubectl is not installed; set KUBECTL"
  "$kubectl" get --raw /readyz >/dev/null || die "the API server does not answer; is KUBECONFIG right?"
  ! exists namespace "$ns" || die "namespace $ns is there already, left by --keep? kubectl delete namespace $ns $plain_ns"
  if ! exists crd "$crd"; then
    say "no Multus here: installing the CRD $crd for the time of the test"
    undo+=(remove_crd)
    "$kubectl" apply -f "$root/internal/devcluster/crds/network-attachment-definitions.yaml"
    "$kubectl" wait --for=condition=Established "crd/$crd" --timeout="${timeout}s"
  fi
  if ! "$kubectl" -n "$system" get deployment tenant-webhook -o name >/dev/null 2>&1; then
    say "nothing is installed: installing it for the time of the test"
    undo+=(remove_installation)
    "$root/scripts/deploy.sh" --timeout "$timeout" ${overlay:+"$overlay"}
  fi
  prepare_mock
  prepare_devices
  undo+=(remove_namespaces)
  "$kubectl" create namespace "$ns"
  "$kubectl" label namespace "$ns" rdma-type=vpc
  "$kubectl" create namespace "$plain_ns"
  # A tenant: may do everything with pods, and nothing that only administrators may.
  local n
  for n in "$ns" "$plain_ns"; do
    "$kubectl" -n "$n" create rolebinding "$user" --clusterrole=edit --user="$user"
  done
}

prepare_mock() {
  local url
  url=$("$kubectl" -n "$system" get deployment tenant-webhook \
    -o 'jsonpath={.spec.template.spec.containers[?(@.name=="webhook")].env[?(@.name=="TENANT_CONTROLLER_URL")].value}')
  if [[ $url != http://tenant-controller:8088 ]] || exists -n "$system" service tenant-controller; then
    say "using the tenant-controller at ${url:-the default address}"
    return
  fi
  say "no tenant-controller here: deploying the mock for the time of the test"
  undo+=(remove_mock)
  "$kubectl" apply -k "$root/mock"
  "$kubectl" -n "$system" rollout status deployment/tenant-controller --timeout="${timeout}s" ||
    die "the mock does not run; is image tenant-controller:v1 on your nodes? docker build -t tenant-controller:v1 -f mock/Dockerfile ."
}

# pool_of TYPE is the first pool of the configuration that serves it.
pool_of() {
  "$kubectl" -n "$system" get configmap resource-pool-config -o 'jsonpath={.data.resource-pools}' |
    awk -v type="$1" '{sub(/#.*/, "")} NF && (!/ type=/ || $0 ~ " type=" type) && $1 !~ /^rdma\// && !found++ {print $1}'
}

# offering prints name and quantity of nodes that take pods and offer a resource.
offering() {
  "$kubectl" get nodes -o go-template='{{range .items}}{{if not .spec.unschedulable}}{{.metadata.name}} {{with index .status.allocatable "'"$1"'"}}{{.}}{{else}}0{{end}}
{{end}}{{end}}' | awk '$2 + 0 > 0'
}

prepare_devices() {
  vf_pool=$(pool_of vf) pf_pool=$(pool_of pf)
  [[ -n $vf_pool && -n $pf_pool ]] || die "ConfigMap $system/resource-pool-config has no pool for vf or none for pf"
  local pool
  for pool in "$vf_pool" "$pf_pool"; do
    if [[ -n $(offering "$pool") ]]; then
      say "using the devices of pool $pool that the cluster has"
      continue
    fi
    [[ -n ${node-} ]] || node=$(schedulable_node)
    [[ -n $node ]] || die "no node is Ready, untainted and schedulable"
    say "writing 4 devices of pool $pool that do not exist onto node $node"
    undo+=("remove_devices $pool")
    # A plain patch of a node's status is ignored: status is a subresource.
    "$kubectl" patch node "$node" --subresource=status --type=merge \
      -p "{\"status\":{\"capacity\":{\"$pool\":\"4\"},\"allocatable\":{\"$pool\":\"4\"}}}"
  done
}

schedulable_node() {
  "$kubectl" get nodes -o go-template='{{range .items}}{{$node := .}}{{if and (not .spec.unschedulable) (not .spec.taints)}}{{range .status.conditions}}{{if and (eq .type "Ready") (eq .status "True")}}{{$node.metadata.name}}
{{end}}{{end}}{{end}}{{end}}' | awk 'NR == 1'
}

remove_crd() { "$kubectl" delete crd "$crd" --ignore-not-found --timeout="${timeout}s"; }
remove_installation() { "$root/scripts/deploy.sh" --uninstall --force --timeout "$timeout"; }
remove_mock() { "$kubectl" delete -k "$root/mock" --ignore-not-found --timeout="${timeout}s"; }
remove_devices() {
  "$kubectl" patch node "$node" --subresource=status --type=merge \
    -p "{\"status\":{\"capacity\":{\"$1\":null},\"allocatable\":{\"$1\":null}}}"
}
remove_namespaces() { "$kubectl" delete namespace "$ns" "$plain_ns" --ignore-not-found --timeout="${timeout}s"; }

# clean_up undoes what was prepared, the last first, whatever fails on the way.
clean_up() {
  local code=$? i
  trap - EXIT INT TERM
  [[ -z $keep ]] || undo=()
  for ((i = ${#undo[@]} - 1; i >= 0; i--)); do
    # shellcheck disable=SC2086 # a step is a function and its arguments
    ${undo[i]} >/dev/null || {
      say "could not undo: ${undo[i]}"
      code=1
    }
  done
  exit "$code"
}

# --- looking at things ---

get() { "$kubectl" -n "$ns" get "$@"; }
field() { get pod "$1" --ignore-not-found -o "jsonpath=$2"; }

annotation() { field "$1" "{.metadata.annotations.${2//./\\.}}"; }

# expect VALUE WANT says what differs.
expect() {
  [[ $1 == "$2" ]] && return
  why="'$1' instead of '$2'"
  return 1
}

running() {
  local phase
  phase=$(field "$1" '{.status.phase}')
  [[ $phase == Running || $phase == Succeeded ]] && return
  why="pod $1 is ${phase:-not there}: $(field "$1" '{.status.conditions[?(@.type=="PodScheduled")].message}')"
  return 1
}

gone() {
  [[ -z $(get "$@" --ignore-not-found -o name) ]] && return
  why="$* is still there: $(get events --field-selector reason=NetworkReleaseFailed -o 'jsonpath={.items[*].message}')"
  return 1
}

# refused PATTERN COMMAND... runs a command that has to fail, and to say why.
refused() {
  local pattern=$1 out
  shift
  if out=$("$@" 2>&1); then
    why="it was accepted"
    return 1
  fi
  grep -qE "$pattern" <<<"$out" && return
  why=$(tail -n 1 <<<"$out")
  return 1
}

# warned PATTERN COMMAND... runs a command that succeeds with a warning.
warned() {
  local pattern=$1 out
  shift
  out=$("$@" 2>&1) && grep -qE "Warning: .*$pattern" <<<"$out" && return
  why="it says '$(tail -n 1 <<<"$out")'"
  return 1
}

# networks_of POD prints how many of the pod's networks exist and were made for it.
networks_of() {
  get "network-attachment-definitions.k8s.cni.cncf.io" -l "tenant.network/pod-uid=$(field "$1" '{.metadata.uid}')" -o name | wc -l
}

# pod NAME ANNOTATIONS [SPEC] is a pod as JSON.
pod() {
  printf '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s","annotations":{%s}%s},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"app","image":"busybox:1.37","command":["sleep","3600"]}]}}' \
    "$1" "$2" "${3-}"
}

create() { pod "$@" | "$kubectl" -n "$ns" create -f - >/dev/null; }
try_create() { pod "${@:2}" | "$kubectl" -n "$1" --as="$user" create --dry-run=server -f -; }

# example FILE applies an example in our namespace instead of its own.
example() {
  awk '/^kind: Namespace$/ {skip = 1} /^---$/ {skip = 0; doc = ""; next} {doc = doc $0 "\n"; if (!skip) last = doc} END {printf "%s", last}' "$root/deploy/$1" |
    sed "s/^  namespace: .*/  namespace: $ns/" | "$kubectl" apply -f - >/dev/null
}

# --- the promises ---

webhook_answers() {
  local out
  out=$(pod probe '"rdma.vf":"0"' | "$kubectl" -n "$ns" create --dry-run=server -f - 2>&1) || true
  [[ $out == *rdma.vf* ]] && return
  why=$out
  return 1
}

admitted() {
  expect "$(field rdma-test-pod '{.spec.containers[0].resources.requests}')" "{\"$vf_pool\":\"2\"}" &&
    expect "$(field rdma-test-pod '{.spec.containers[0].resources.limits}')" "{\"$vf_pool\":\"2\"}" &&
    expect "$(field rdma-test-pod '{.spec.schedulerName}')" tenant-scheduler &&
    expect "$(field rdma-test-pod '{.metadata.finalizers}')" "[\"$finalizer\"]" &&
    expect "$(annotation rdma-test-pod tenant.network/resource-type)" vf &&
    expect "$(annotation rdma-test-pod tenant.network/resource-pool)" "$vf_pool"
}

connected() {
  local networks
  networks=$(annotation rdma-test-pod k8s.v1.cni.cncf.io/networks)
  expect "$(tr ',' '\n' <<<"$networks" | grep -c "^$ns/.*@")" 2 && expect "$(networks_of rdma-test-pod)" 2
}

plain_pod_is_untouched() {
  local out
  out=$(try_create "$ns" plain '' 2>&1 && pod plain '' | "$kubectl" -n "$ns" create --dry-run=server -f - \
    -o 'jsonpath={.spec.schedulerName}|{.metadata.finalizers}|{.spec.containers[0].resources}') || {
    why=$out
    return 1
  }
  expect "$(tail -n 1 <<<"$out")" "default-scheduler||{}"
}

full_pool_says_so() {
  local message
  message=$(field large '{.status.conditions[?(@.type=="PodScheduled")].message}')
  [[ $message == *"Insufficient $vf_pool (allocatable "* ]] && return
  why="its condition says '$message'"
  return 1
}

deployment_runs() {
  local uids
  expect "$(get deployment rdma-test-deployment -o 'jsonpath={.status.readyReplicas}')" 2 || return 1
  uids=$(get pods -l app=rdma-test-deployment -o 'jsonpath={.items[*].metadata.uid}')
  expect "$(get "network-attachment-definitions.k8s.cni.cncf.io" -l "tenant.network/pod-uid in (${uids// /,})" -o name | wc -l)" 2
}

job_releases() {
  local name
  expect "$(get job rdma-test-job -o 'jsonpath={.status.succeeded}')" 1 || return 1
  name=$(get pods -l job-name=rdma-test-job -o 'jsonpath={.items[0].metadata.name}')
  expect "$(field "$name" '{.metadata.finalizers}')" "" && expect "$(networks_of "$name")" 0
}

replacement_gets_its_own() {
  local old=$1 new
  new=$(get pods -l app=rdma-test-deployment -o 'jsonpath={.items[*].metadata.name}')
  [[ " $new " != *" $old "* ]] || {
    why="pod $old is still there"
    return 1
  }
  deployment_runs
}

nothing_left() {
  local left
  left=$(get "network-attachment-definitions.k8s.cni.cncf.io" -l tenant.network/pod-uid -o name)
  expect "$left" ""
}

applied_again() {
  local dir out
  dir=$(overlay_dir "$root" "$overlay")
  # kubectl apply itself calls kinds "configured" that it did not change.
  out=$("$kubectl" diff -k "$dir" 2>&1) && return
  why=$(grep -E '^[-+] ' <<<"$out" | paste -sd' ' - | cut -c1-200)
  why=${why:-$(tail -n 1 <<<"$out")}
  return 1
}

run() {
  check "the webhook answers" eventually webhook_answers

  example example-test-pod.yaml || true
  check "example-test-pod.yaml is admitted: devices, finalizer, scheduler, pool" admitted
  check "it runs" eventually running rdma-test-pod
  check "it has 2 networks, which exist and were made for it" eventually connected
  check "a tenant cannot change its networks" refused 'written by tenant-webhook' \
    "$kubectl" -n "$ns" --as="$user" annotate pod rdma-test-pod --overwrite k8s.v1.cni.cncf.io/networks=other
  check "a tenant cannot take its finalizer away" refused 'finalizer tenant.network/cleanup' \
    "$kubectl" -n "$ns" --as="$user" patch pod rdma-test-pod --type=merge -p '{"metadata":{"finalizers":null}}'

  check "a plain pod is left alone" plain_pod_is_untouched
  check "a count of 1.5 is refused, and the message quotes it" refused 'rdma\.vf.*"1\.5"' try_create "$ns" bad '"rdma.vf":"1.5"'
  check "networks that Multus cannot read are refused" refused 'k8s.v1.cni.cncf.io/networks' \
    try_create "$ns" bad '"rdma.vf":"1","k8s.v1.cni.cncf.io/networks":"a,,b"'
  check "a copied finalizer is refused where the namespace is not opted in" refused 'is set by tenant-webhook alone' \
    try_create "$plain_ns" bad '' ",\"finalizers\":[\"$finalizer\"]"

  check "rdma.vf where the namespace is not opted in is warned about" warned 'have no effect' \
    try_create "$plain_ns" ignored '"rdma.vf":"1"'

  check "a pod that no node can hold is admitted" create large '"rdma.vf":"64"'
  check "it waits, and its condition has the figures" eventually full_pool_says_so

  example example-deployment.yaml || true
  check "example-deployment.yaml runs, each pod with a network of its own" eventually deployment_runs
  local old
  old=$(get pods -l app=rdma-test-deployment -o 'jsonpath={.items[0].metadata.name}')
  "$kubectl" -n "$ns" delete pod "$old" --wait=false >/dev/null || true
  check "a deleted replica is replaced, with a network of its own" eventually replacement_gets_its_own "$old"

  example example-job.yaml || true
  check "example-job.yaml ends, and its finished pod has given its network back" eventually job_releases

  "$kubectl" -n "$ns" delete pod rdma-test-pod large --wait=false >/dev/null || true
  check "deleted pods go, and give their networks back" eventually released
  check "networks of the user's own stay first, unchanged" users_networks

  "$kubectl" -n "$ns" delete deployment,job,pod --all --wait=false >/dev/null || true
  check "all pods go, nothing hangs" eventually gone pods
  check "no network is left" eventually nothing_left
  check "applying it again changes nothing" applied_again
}

# released is when the networks of the two replicas are the only ones.
released() {
  gone pod rdma-test-pod && gone pod large &&
    expect "$(get "network-attachment-definitions.k8s.cni.cncf.io" -l tenant.network/pod-uid -o name | wc -l)" 2
}

users_networks() {
  create mixed '"rdma.vf":"1","k8s.v1.cni.cncf.io/networks":"mine"' || return 1
  eventually scheduled mixed || return 1
  local networks
  networks=$(annotation mixed k8s.v1.cni.cncf.io/networks)
  [[ $networks == mine,$ns/*@* ]] && return
  why="they are '$networks'"
  return 1
}

# scheduled does not want the pod to run: where Multus is at work, the network named mine does not exist.
scheduled() {
  [[ -n $(field "$1" '{.spec.nodeName}') ]] && return
  why="pod $1 is not placed: $(field "$1" '{.status.conditions[?(@.type=="PodScheduled")].message}')"
  return 1
}

parse "$@"
overlay_dir "$root" "$overlay" >/dev/null || die "see --help"
trap clean_up EXIT
trap 'exit 130' INT TERM
prepare
run
echo
printf '%s\n' "${rows[@]}"
echo
if ((failed)); then
  say "$failed of ${#rows[@]} checks failed"
  exit 1
fi
say "all ${#rows[@]} checks passed"
