#!/usr/bin/env bash
# Brings what figures are compared with: `tools/setup_peers.sh torch` the full PyTorch 2.11.0 in .venv-peers (2.7 GB to download, 7 GB on disk),
# `tools/setup_peers.sh mpi` Open MPI from Debian; and for tests `slurm`, on which the page's script runs, `promtool`, which reads our metrics,
# and `etcd`, which keeps what elastic groups decide. The first two when nothing is named. The measuring programs call it when a case needs one;
# says nothing when all is there, needs no network then, and may be interrupted and run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly requirements=bench/peers/requirements.txt stamp=.venv-peers/shoal-requirements.sha256

say() { printf 'setup_peers: %s\n' "$*" >&2; }
fail() {
  printf 'setup_peers: %s\n' "$@" >&2
  exit 1
}

setup_torch() {
  local sum python
  sum=$(sha256sum <"$requirements")
  [[ $(cat "$stamp" 2>/dev/null) == "$sum" && -x .venv-peers/bin/python ]] && return
  for python in python3 python3.11 /usr/bin/python3 ''; do
    [[ -n $python ]] || fail "no Python 3.11 with the venv module (tried python3, python3.11, /usr/bin/python3): the pinned wheels are for it"
    "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && break
  done
  say "installing the full PyTorch 2.11.0 into .venv-peers (2.7 GB to download)"
  [[ -x .venv-peers/bin/python ]] || "$python" -m venv --clear .venv-peers
  .venv-peers/bin/python -m pip install --disable-pip-version-check --no-input --no-deps --only-binary=:all: --requirement "$requirements" >&2 ||
    fail "pip could not install the peer (its words are above). Run the same command again to continue."
  .venv-peers/bin/python -c 'import torch; assert torch.__version__.startswith("2.11.0"), torch.__version__' ||
    fail "PyTorch in .venv-peers does not import; remove .venv-peers and run the same command again"
  echo "$sum" >"$stamp"
}

# setup_debian PURPOSE PACKAGE...: installs Debian's packages.
setup_debian() {
  local purpose=$1 as_root=()
  shift
  if ((EUID != 0)); then
    { command -v sudo >/dev/null && sudo -n true 2>/dev/null; } ||
      fail "$purpose is missing and needs the administrator:" "  sudo apt-get install --yes --no-install-recommends $*"
    as_root=(sudo -n)
  fi
  command -v apt-get >/dev/null || fail "$purpose is missing, and this is not Debian: install it by hand"
  say "installing $*"
  "${as_root[@]}" apt-get update --quiet --quiet || say "apt-get update failed; trying with the package list at hand"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends "$@" >&2 ||
    fail "apt-get could not install $* (its words are above)"
}

setup_mpi() {
  command -v mpicc >/dev/null && command -v mpirun >/dev/null && return
  setup_debian "Open MPI" openmpi-bin libopenmpi-dev
}

# Unpacked and not installed: the package would start a server.
setup_promtool() {
  local folder=build/peers/prometheus
  { command -v promtool || [[ -x $folder/usr/bin/promtool ]]; } >/dev/null && return
  command -v apt-get >/dev/null || fail "promtool is missing, and this is not Debian: install it by hand"
  say "unpacking promtool (19 MB to download)"
  rm -rf "$folder" && mkdir -p "$folder"
  (cd "$folder" && apt-get download --quiet --quiet prometheus && dpkg --extract prometheus_*.deb . && rm prometheus_*.deb) >&2 ||
    fail "apt-get could not download prometheus (its words are above); after 'apt-get update' it may"
}

# Unpacked and not installed, like promtool.
setup_etcd() {
  local folder=build/peers/etcd
  { command -v etcd || [[ -x $folder/usr/bin/etcd ]]; } >/dev/null && return
  command -v apt-get >/dev/null || fail "etcd is missing, and this is not Debian: install it by hand"
  say "unpacking etcd (8 MB to download)"
  rm -rf "$folder" && mkdir -p "$folder"
  (cd "$folder" && apt-get download --quiet --quiet etcd-server && dpkg --extract etcd-server_*.deb . && rm etcd-server_*.deb) >&2 ||
    fail "apt-get could not download etcd-server (its words are above); after 'apt-get update' it may"
}

# Daemons lie where root alone looks for programs.
setup_slurm() {
  local PATH=$PATH:/usr/sbin
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v srun >/dev/null && command -v munged >/dev/null && return
  setup_debian Slurm slurmctld slurmd slurm-client munge
}

(($#)) || set -- torch mpi
for peer in "$@"; do
  case $peer in
    torch) setup_torch ;;
    mpi) setup_mpi ;;
    slurm) setup_slurm ;;
    promtool) setup_promtool ;;
    etcd) setup_etcd ;;
    *) fail "no peer '$peer': torch, mpi, slurm, promtool or etcd" ;;
  esac
done
