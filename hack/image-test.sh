#!/usr/bin/env bash
# Builds the images with buildah, without a registry, and runs each program from its image's file system. TARGETS names
# some of webhook, scheduler and mock.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v buildah >/dev/null || {
  echo "image-test: buildah is not installed; apt-get install buildah" >&2
  exit 1
}
# A store of its own, without a kernel's help: CI runs in a container.
store=$(mktemp -d)
export STORAGE_DRIVER=vfs CONTAINERS_STORAGE_CONF=$store/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$store" "$store" >"$store/storage.conf"
trap 'buildah rm --all >/dev/null 2>&1; rm -rf "$store"' EXIT

version=v0.0.0-test
ENGINE=buildah hack/docker-build.sh "$version" --prebuilt

# check IMAGE PROGRAM TEXT: the image has one static program, a user without rights, its version; the program answers
# to --help with the text.
check() {
  local image=$1 program=$2 text=$3 container root found
  container=$(buildah from "$image:$version")
  root=$(buildah mount "$container")
  found=$(cd "$root" && find . -type f -not -path './proc/*' -not -path './sys/*' -not -path './dev/*' -not -path './etc/*' -not -path './run/*')
  [[ $found == "./$program" ]] || fail "$image holds '$found' and not $program alone"
  ! ldd "$root/$program" >/dev/null 2>&1 || fail "$program is not static"
  expect "$image" '{{.OCIv1.Config.User}}' 65532:65532
  expect "$image" '{{index .OCIv1.Config.Entrypoint 0}}' "/$program"
  expect "$image" '{{index .OCIv1.Config.Labels "org.opencontainers.image.version"}}' "$version"
  local help
  help=$("$root/$program" --help 2>&1) || true
  [[ $help == *"$text"* ]] || fail "$program --help does not say '$text': $help"
  echo "image-test: $image: ok"
}

expect() {
  local value
  value=$(buildah inspect --type image --format "$2" "$1:$version")
  [[ $value == "$3" ]] || fail "$1: $2 is '$value' and not '$3'"
}

fail() {
  echo "image-test: $*" >&2
  exit 1
}

# named IMAGE: the manifests name an image that was just built.
named() {
  local image
  image=$(grep -rhoE "image: $1:[^ ]+" manifests mock | sort -u)
  [[ -n $image && $image != *$'\n'* ]] || fail "the manifests name '$image' for $1, and not one image"
  [[ $(buildah images --quiet "${image#image: }") == "$(buildah images --quiet "$1:$version")" ]] ||
    fail "${image#image: }, which the manifests name, was not built"
}

read -ra targets <<<"${TARGETS:-webhook scheduler mock}"
for target in "${targets[@]}"; do
  case $target in
    webhook) check tenant-webhook tenant-webhook --tenant-controller-url && named tenant-webhook ;;
    scheduler) check tenant-scheduler tenant-scheduler --write-config-to && named tenant-scheduler ;;
    mock) check tenant-controller tenant-controller -request-log && named tenant-controller ;;
  esac
done
