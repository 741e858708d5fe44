#!/usr/bin/env bash
# Installs what a development node consists of, on Debian and Ubuntu: containerd (with ctr and its shim), runc and the
# CNI plugins. Nothing of it is started: the node runs its own containerd, with its own directories and socket.
set -euo pipefail

packages=(containerd runc containernetworking-plugins)

missing=()
for package in "${packages[@]}"; do
  # ${db:Status-Status} is dpkg's own field.
  status=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} = 0 ]; then
  echo "node-install: ${packages[*]} are installed"
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "node-install: not root; run: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 2
fi
# On a machine that runs services the distribution's containerd would be started by the installation.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
echo "node-install: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}" >/dev/null
echo "node-install: installed ${missing[*]}"
