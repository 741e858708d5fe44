# Sourced by the scripts here.

# overlay_dir REPOSITORY OVERLAY prints the directory with the kustomization that the argument of a script means: manifests
# without one. A plain word is one of deploy/overlays first, whatever directories of that name lie here.
overlay_dir() {
  local repository=$1 wanted=$2 dir
  local candidates=("$wanted" "$repository/deploy/overlays/$wanted")
  [[ $wanted == */* ]] || candidates=("$repository/deploy/overlays/$wanted" "$wanted")
  [[ -n $wanted ]] || candidates=("$repository/manifests")
  for dir in "${candidates[@]}"; do
    if [[ -f $dir/kustomization.yaml ]]; then
      printf '%s\n' "$dir"
      return
    fi
  done
  printf "'%s' is neither a directory with a kustomization.yaml nor one of %s\n" "$wanted" "$(cd "$repository/deploy/overlays" && echo *)" >&2
  return 1
}
