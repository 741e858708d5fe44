#!/usr/bin/env bash
# Builds the images with docker, podman or buildah, whichever is there.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-unknown}
for engine in docker podman buildah; do
  command -v "$engine" >/dev/null && break
  engine=
done
[ -n "$engine" ] || { echo "docker-build: none of docker, podman and buildah is installed" >&2; exit 1; }
for target in webhook scheduler; do
  "$engine" build --build-arg "VERSION=$version" --target "$target" -t "tenant-$target:$version" .
done
"$engine" build -t "tenant-controller:$version" -f mock/Dockerfile .
