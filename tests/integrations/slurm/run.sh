#!/usr/bin/env bash
# Installs Slurm from the distribution and tests the integration against its real daemons; `make test-slurm` calls it
# with the command that runs pytest. Where Slurm cannot be installed it says why, and ends well.
set -euo pipefail

packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge)

if [ "$(id -u)" != 0 ]; then
  echo "test-slurm: skipped: needs root, to install Slurm and to start its daemons"
  exit 0
fi
if ! command -v apt-get > /dev/null; then
  echo "test-slurm: skipped: needs apt-get, to install ${packages[*]}"
  exit 0
fi
missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "test-slurm: installing ${missing[*]}"
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
    tail -n 20 "$log"
    rm "$log"
    echo "test-slurm: failed: apt-get could not install ${missing[*]}"
    exit 1
  fi
  rm "$log"
fi
echo "test-slurm: $(slurmctld -V)"
exec "$@" -m slurm tests/integrations/slurm
