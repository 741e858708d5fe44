# Sourced by the scripts here.

# overlay_dir ROOT OVERLAY prints the directory with the kustomization that the argument of a script means: manifests
# without one. A plain word is one of deploy/overlays first, whatever directories of that name lie here.
overlay_dir() {
  local root=$1 overlay=$2 dir
  local candidates=("$overlay" "$root/deploy/overlays/$overlay")
  [[ $overlay == */* ]] || candidates=("$root/deploy/overlays/$overlay" "$overlay")
  [[ -n $overlay ]] || candidates=("$root/manifests")
  for dir in "${candidates[@]}"; do
    if [[ -f $dir/kustomization.yaml ]]; then
      printf '%s\n' "$dir"
      return
    fi
  done
  printf "'%s' is neither a directory with a kustomization.yaml nor one of %s\n" "$overlay" "$(cd "$root/deploy/overlays" && echo *)" >&2
  return 1
}
