#!/usr/bin/env bash
# Builds the images with docker, podman or buildah, whichever works here.
# Each gets the tag VERSION and the one that the manifests name.
#   hack/docker-build.sh VERSION             compiles in the builder image
#   hack/docker-build.sh VERSION --prebuilt  takes what make build has put into bin, onto an empty base: needs no registry
# The environment variables ENGINE, BASE_IMAGE, BUILD_IMAGE, PLATFORM (os/arch) and TARGETS (webhook scheduler mock) choose
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-unknown}
read -ra targets <<<"${TARGETS:-webhook scheduler mock}"
prebuilt=
case ${2-} in
  '') ;;
  --prebuilt) prebuilt=yes ;;
  *)
    echo "docker-build: unknown argument '$2'; there is --prebuilt" >&2
    exit 2
    ;;
esac

# works: docker and podman may be installed without a daemon or the rights to use it.
works() {
  command -v "$1" >/dev/null || return 1
  [[ $1 == buildah ]] || "$1" info >/dev/null 2>&1
}

engine=${ENGINE-}
if [[ -z $engine ]]; then
  for engine in docker podman buildah none; do
    works "$engine" && break
  done
fi
[[ $engine != none ]] || {
  echo "docker-build: none of docker, podman and buildah works here; apt-get install buildah" >&2
  exit 1
}

flags=(--build-arg "VERSION=$version")
[[ -z ${BASE_IMAGE-} ]] || flags+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")
[[ -z ${BUILD_IMAGE-} ]] || flags+=(--build-arg "BUILD_IMAGE=$BUILD_IMAGE")
[[ -z ${PLATFORM-} ]] || flags+=(--platform "$PLATFORM")
# Inside a container there are neither the rights for namespaces nor a store on overlayfs.
[[ $engine != buildah ]] || flags+=(--isolation chroot)
context=.

if [[ -n $prebuilt ]]; then
  context=$(mktemp -d)
  trap 'rm -rf "$context"' EXIT
  for target in "${targets[@]}"; do
    case $target in
      webhook) cp bin/tenant-webhook "$context/tenant-webhook" ;;
      mock) cp bin/tenant-controller-mock "$context/tenant-controller" ;;
      scheduler) cp bin/tenant-scheduler "$context/tenant-scheduler" ;;
      *)
        echo "docker-build: TARGETS: '$target' is none of webhook, scheduler and mock" >&2
        exit 2
        ;;
    esac
  done
  [[ -n ${BASE_IMAGE-} ]] || flags+=(--build-arg BASE_IMAGE=scratch)
  flags+=(--build-arg BINARIES=prebuilt)
fi

for target in "${targets[@]}"; do
  # The second tag is the one in the manifests.
  name=tenant-$target tag=latest
  [[ $target != mock ]] || name=tenant-controller tag=v1
  "$engine" build "${flags[@]}" --target "$target" -t "$name:$version" -t "$name:$tag" -f Dockerfile "$context"
done
