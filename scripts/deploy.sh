#!/usr/bin/env bash
# Installs tenant-webhook and tenant-scheduler on the cluster of the present kubeconfig, or takes them away again.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: scripts/deploy.sh [--dry-run] [--stock-scheduler-runs] [--timeout SECONDS] [OVERLAY]
       scripts/deploy.sh --uninstall [--force] [--dry-run] [--stock-scheduler-runs] [--timeout SECONDS]

OVERLAY is the name of a directory in deploy/overlays, or a directory with a kustomization; manifests without one.
Doing it again changes nothing that is as it should be.

  --dry-run    say what would be done; nothing is changed
  --uninstall  remove everything that was installed, whatever the overlay; refuses while RDMA pods live
  --force      with --uninstall: delete the RDMA pods first, and take our finalizer from those that nobody releases
  --timeout    seconds that each wait may take, 180 without it
  --stock-scheduler-runs
               the cluster's own scheduler is there again, although no Pod in kube-system shows it: without this the
               cluster's only scheduler is not taken away

The environment variable KUBECTL names another kubectl.
USAGE
}

readonly namespace=webhook-system
readonly finalizer=tenant.network/cleanup
readonly label=app.kubernetes.io/part-of=tenant-webhook
readonly crd=network-attachment-definitions.k8s.cni.cncf.io
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root
# shellcheck source=scripts/overlay.sh
source "$root/scripts/overlay.sh"
kubectl=${KUBECTL:-kubectl}

dry_run= uninstall= force= stock_scheduler_runs= timeout=180 overlay=

say() { printf 'deploy: %s\n' "$*"; }
die() {
  printf 'deploy: %s\n' "$*" >&2
  exit 1
}

parse() {
  while (($#)); do
    case $1 in
      --dry-run) dry_run=yes ;;
      --uninstall) uninstall=yes ;;
      --force) force=yes ;;
      --stock-scheduler-runs) stock_scheduler_runs=yes ;;
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
        [[ -z $overlay ]] || die "one overlay only, not '$overlay' and '$1'; write a kustomization that has both"
        overlay=$1
        ;;
    esac
    shift
  done
  [[ -z $force || -n $uninstall ]] || die "--force goes with --uninstall only"
}

check_cluster() {
  command -v "$kubectl" >/dev/null || die "$kubectl is not installed; set KUBECTL"
  "$kubectl" get --raw /readyz >/dev/null || die "the API server does not answer; is KUBECONFIG right?"
  local may
  may=$("$kubectl" auth can-i create clusterroles 2>/dev/null || true)
  [[ $may == yes ]] || die "you may not create ClusterRoles; installing takes a cluster administrator"
}

exists() { [[ -n $("$kubectl" get "$@" --ignore-not-found -o name) ]]; }

# until_true WHAT COMMAND... repeats the command until it succeeds, at most for the time limit.
until_true() {
  local what=$1 end=$((SECONDS + timeout))
  shift
  say "waiting for $what (up to $timeout s)"
  until "$@"; do
    if ((SECONDS >= end)); then
      return 1
    fi
    sleep 1
  done
}

# keep_a_scheduler refuses to take away what places the cluster's plain pods while nobody else is seen who would.
keep_a_scheduler() {
  local live pods
  live=$("$kubectl" -n "$namespace" get configmap tenant-scheduler-config --ignore-not-found -o jsonpath='{.data}')
  [[ $live == *'schedulerName: default-scheduler'* && -z $stock_scheduler_runs ]] || return 0
  pods=$("$kubectl" -n kube-system get pods -l component=kube-scheduler --field-selector status.phase=Running -o name)
  [[ -z $pods ]] || return 0
  die "tenant-scheduler is this cluster's only scheduler, and $1: bring the stock kube-scheduler back first (docs/operations.md), or say --stock-scheduler-runs"
}

# --- install ---

deploy() {
  local dir rendered applied name
  dir=$(overlay_dir "$root" "$overlay") || die "see --help"
  rendered=$("$kubectl" kustomize "$dir") || die "$dir cannot be rendered"
  if [[ $rendered != *'schedulerName: default-scheduler'* ]]; then
    keep_a_scheduler "with $dir it would place RDMA pods only"
  fi
  if ! exists crd "$crd"; then
    say "note: the CRD $crd is not there; RDMA pods will wait until Multus is installed"
  fi
  if [[ -n $dry_run ]]; then
    # In a namespace that does not exist the server says nothing about the objects.
    local strategy=server
    exists namespace "$namespace" || strategy=client
    say "dry run ($strategy): kubectl apply -k $dir"
    "$kubectl" apply --dry-run="$strategy" -k "$dir"
    return
  fi
  say "kubectl apply -k $dir"
  applied=$("$kubectl" apply -k "$dir") || die "not everything was applied: mend what is said above and run this again"
  printf '%s\n' "$applied"
  restart_scheduler "$applied"
  for name in $("$kubectl" -n "$namespace" get deployments -l "$label" -o name); do
    say "waiting for $namespace/$name to be rolled out (up to $timeout s)"
    "$kubectl" -n "$namespace" rollout status "$name" --timeout="${timeout}s" || explain_rollout "$name"
  done
  await_webhook
  say "installed; next: kubectl apply -f deploy/example-test-pod.yaml, or scripts/self-test.sh"
}

# restart_scheduler has the scheduler read a configuration that changed: its Pods read their ConfigMap when they start (the
# pools' one is watched). The Deployment notes for which one that was done last, so that a run that ended early is made up for.
restart_scheduler() {
  local note=tenant.network/scheduler-config sum noted
  exists -n "$namespace" deployment tenant-scheduler || return 0
  sum=$("$kubectl" -n "$namespace" get configmap tenant-scheduler-config -o jsonpath='{.data}' | cksum | tr ' ' -)
  noted=$("$kubectl" -n "$namespace" get deployment tenant-scheduler -o "jsonpath={.metadata.annotations.tenant\\.network/scheduler-config}")
  [[ $noted != "$sum" ]] || return 0
  if ! grep -q '^deployment.apps/tenant-scheduler created' <<<"$1"; then
    say "the scheduler's configuration changed: restarting it"
    "$kubectl" -n "$namespace" rollout restart deployment/tenant-scheduler
  fi
  "$kubectl" -n "$namespace" annotate --overwrite deployment/tenant-scheduler "$note=$sum" >/dev/null
}

explain_rollout() {
  "$kubectl" -n "$namespace" get pods -l "$label" -o wide >&2 || true
  "$kubectl" -n "$namespace" get events --field-selector type=Warning >&2 || true
  die "$1 is not rolled out after $timeout s; its pods and the warnings are above"
}

# await_webhook asks for a pod that is not created, where a namespace is opted in.
await_webhook() {
  local opted_in
  opted_in=$("$kubectl" get namespaces -l rdma-type=vpc --field-selector status.phase=Active -o name |
    awk '$0 !~ "^namespace/(kube-system|'"$namespace"')$" && !n++')
  if [[ -z $opted_in ]]; then
    say "no namespace is labelled rdma-type=vpc yet: kubectl label namespace NAME rdma-type=vpc"
    return
  fi
  until_true "the webhook to answer for ${opted_in}" webhook_answers "${opted_in#namespace/}" ||
    die "the webhook does not answer: $(webhook_says "${opted_in#namespace/}")"
}

# A count of 0 is refused by the webhook and by nobody else.
webhook_says() {
  "$kubectl" create --dry-run=server -f - 2>&1 <<POD || true
apiVersion: v1
kind: Pod
metadata: {name: tenant-webhook-probe, namespace: $1, annotations: {rdma.vf: "0"}}
spec: {containers: [{name: app, image: app}]}
POD
}

webhook_answers() { [[ $(webhook_says "$1") == *rdma.vf* ]]; }

# --- uninstall ---

# rdma_pods prints namespace, name, phase and deletion time ("-" for none) of all pods with our finalizer.
rdma_pods() {
  "$kubectl" get pods --all-namespaces --chunk-size=500 -o go-template='{{range .items}}{{$pod := .}}{{range .metadata.finalizers}}{{if eq . "'"$finalizer"'"}}{{$pod.metadata.namespace}} {{$pod.metadata.name}} {{$pod.status.phase}} {{or $pod.metadata.deletionTimestamp "-"}}
{{end}}{{end}}{{end}}'
}

# live_pods are those that nobody has ended.
live_pods() { rdma_pods | awk '$3 != "Succeeded" && $3 != "Failed" && $4 == "-" {print $1, $2}'; }

# An API server that does not answer must not look like one without pods.
no_rdma_pods() {
  local pods
  pods=$(rdma_pods) && [[ -z $pods ]]
}

uninstall() {
  local live
  keep_a_scheduler "uninstalling removes it"
  live=$(live_pods)
  if [[ -n $live && -z $force ]]; then
    awk 'NR <= 20 {print "  " $1 "/" $2}' <<<"$live" >&2
    die "$(wc -l <<<"$live") RDMA pods live (the first are above): end them first, or use --force, which deletes them"
  fi
  if [[ -n $dry_run ]]; then
    [[ -z $live ]] || printf '%s\n' "$live" | sed 's/^/deploy: would delete pod /'
    our_objects | sed 's/^/deploy: would delete /'
    return
  fi
  say "no more pods are admitted as RDMA pods: deleting the webhook configuration"
  "$kubectl" delete mutatingwebhookconfigurations -l "$label" --ignore-not-found
  live=$(live_pods) # what was admitted in the meantime
  if [[ -n $live ]]; then
    [[ -n $force ]] || die "an RDMA pod was created just now: run this again"
    say "deleting $(wc -l <<<"$live") RDMA pods; what their owners make instead are plain pods without networks"
    while read -r ns name; do
      "$kubectl" -n "$ns" delete pod "$name" --ignore-not-found --wait=false
    done <<<"$live"
  fi
  release_all
  delete_objects
  say "uninstalled"
}

# release_all leaves no pod with our finalizer. Giving networks back is the work of tenant-webhook, which still runs;
# where it does not come to its end, the finalizer is all that can be taken away from here.
release_all() {
  if no_rdma_pods || until_true "the networks of all RDMA pods to be given back" no_rdma_pods; then
    return
  fi
  rdma_pods | sed 's/^/deploy: not released: /' >&2
  [[ -n $force ]] || die "these pods were not released within $timeout s (docs/operations.md says why); --force takes their finalizer away"
  say "taking the finalizer from them; your tenant-controller may hold networks for them, which it has to release itself"
  local ns name at
  while read -r ns name _; do
    at=$("$kubectl" -n "$ns" get pod "$name" --ignore-not-found -o go-template='{{range $i, $f := .metadata.finalizers}}{{if eq $f "'"$finalizer"'"}}{{$i}}{{end}}{{end}}')
    [[ -n $at ]] || continue # released in the meantime
    "$kubectl" -n "$ns" patch pod "$name" --type=json -p "[
      {\"op\": \"test\", \"path\": \"/metadata/finalizers/$at\", \"value\": \"$finalizer\"},
      {\"op\": \"remove\", \"path\": \"/metadata/finalizers/$at\"}]"
  done < <(rdma_pods)
  no_rdma_pods || die "there are still pods with finalizer $finalizer: run this again"
}

# kinds are all kinds that can be deleted but those that go with others, separated by commas.
kinds() {
  "$kubectl" api-resources --verbs=list,delete -o name |
    grep -vE '^(namespaces|pods|events|events\.events\.k8s\.io|replicasets\.apps|endpoints|endpointslices\.discovery\.k8s\.io|controllerrevisions\.apps)$' |
    paste -sd, -
}

# our_objects prints kind and name of everything that carries our label, and of what our programs made for themselves.
our_objects() {
  "$kubectl" get "$(kinds)" --all-namespaces -l "$label" --ignore-not-found -o go-template='{{range .items}}{{.kind}} {{with .metadata.namespace}}{{.}}/{{end}}{{.metadata.name}}
{{end}}'
  "$kubectl" -n "$namespace" get lease/tenant-webhook lease/tenant-scheduler --ignore-not-found \
    -o go-template='{{range .items}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}}
{{end}}'
}

delete_objects() {
  say "deleting everything labelled $label"
  "$kubectl" -n "$namespace" delete deployments -l "$label" --ignore-not-found --timeout="${timeout}s"
  until_true "our pods in $namespace to end" our_pods_gone || die "our pods in $namespace do not end"
  "$kubectl" delete "$(kinds)" --all-namespaces -l "$label" --ignore-not-found --timeout="${timeout}s"
  "$kubectl" -n "$namespace" delete lease/tenant-webhook lease/tenant-scheduler --ignore-not-found
  exists namespace "$namespace" || return 0
  local others
  others=$("$kubectl" -n "$namespace" get deployments,statefulsets,daemonsets,jobs,cronjobs,pods,services,ingresses,persistentvolumeclaims,configmaps,secrets,serviceaccounts -o name)
  others=$(grep -vxE 'configmap/kube-root-ca.crt|serviceaccount/default' <<<"$others" || true) # every namespace has these
  if [[ -n $others ]]; then
    say "namespace $namespace stays: it holds what is not ours ($(awk 'NR <= 3' <<<"$others" | paste -sd' ' -), …)"
    "$kubectl" label namespace "$namespace" "${label%%=*}-"
    return
  fi
  say "waiting for namespace $namespace to go (up to $timeout s)"
  "$kubectl" delete namespace "$namespace" --timeout="${timeout}s"
}

our_pods_gone() {
  local pods
  pods=$("$kubectl" -n "$namespace" get pods -l "$label" -o name) && [[ -z $pods ]]
}

parse "$@"
check_cluster
if [[ -n $uninstall ]]; then
  uninstall
else
  deploy
fi
