#!/usr/bin/env bash
# Brings what Shoal is built with: packages of Debian 12, Debian 13 or Ubuntu 24.04, and LibTorch 2.11. Says nothing when all is there, needs no
# network then, and may be interrupted and run again at any point.
#
# Torch is, in this order: the folder that SHOAL_TORCH names; the one chosen before (build/torch-path); one that python3 can import; a
# wheel, pinned by version and hash, in .venv. The choice is written into build/torch-path, where cmake/torch.cmake reads it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly packages=(g++ cmake ninja-build ccache python3 python3-venv libfmt-dev libspdlog-dev libcli11-dev libtomlplusplus-dev
  nlohmann-json3-dev libhwy-dev libsentencepiece-dev libonig-dev libutf8proc-dev zlib1g-dev libgtest-dev libgmock-dev libbenchmark-dev libssl-dev libcurl4-openssl-dev clang clang-format clang-tidy
  libclang-rt-dev)
readonly requirements=tools/requirements-torch.txt
readonly venv_stamp=.venv/shoal-requirements.sha256

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

# --- Debian's packages ------------------------------------------------------------------------------------------------------------------

missing_packages() {
  local installed name
  # dpkg-query fails when it has never heard of one of them, which here is an answer.
  installed=" $({ dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true; } | sed -n 's/ installed$//p' | tr '\n' ' ')"
  for name in "${packages[@]}"; do
    [[ $installed == *" $name "* ]] || echo "$name"
  done
}

install_packages() {
  local missing=() as_root=()
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
      fail "Debian packages are missing and need the administrator. Run this line, then the same make again:" \
        "  sudo apt-get update && sudo apt-get install --yes --no-install-recommends ${missing[*]}"
    fi
    as_root=(sudo -n)
  fi
  say "installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update --quiet --quiet || say "apt-get update failed; trying with the package list at hand"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends "${missing[@]}" >&2 ||
    fail "apt-get could not install: ${missing[*]} (its words are above)." \
      "These are the packages of Debian 12, Debian 13 and Ubuntu 24.04. Elsewhere install what they hold under its names there, g++ 12 or" \
      "newer and CMake 3.25 or newer among it, and go on without this script: cmake --preset release -DSHOAL_TORCH=<dir of a Torch 2.11>"
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) || fail "still missing after apt-get: ${missing[*]}"
}

# --- Torch ------------------------------------------------------------------------------------------------------------------------------

# What Shoal compiles and links with, and the right version of it.
is_torch() {
  [[ -f $1/include/ATen/core/Tensor.h && -f $1/lib/libtorch_cpu.so && -f $1/lib/libc10.so ]] &&
    grep -qx '#define TORCH_VERSION_MAJOR 2' "$1/include/torch/headeronly/version.h" 2>/dev/null &&
    grep -qx '#define TORCH_VERSION_MINOR 11' "$1/include/torch/headeronly/version.h"
}

choose() {
  mkdir -p build
  if [[ $(cat build/torch-path 2>/dev/null) != "$1" ]]; then
    echo "$1" >build/torch-path.new
    mv build/torch-path.new build/torch-path
    say "Torch: $1"
  fi
}

# The folder of the torch package that a Python would import, found without importing it: that takes seconds.
torch_of_python() {
  "$1" -c 'import importlib.util, os; s = importlib.util.find_spec("torch"); s and s.origin and print(os.path.dirname(s.origin))' 2>/dev/null || true
}

# One for which there is a pinned wheel. LibTorch itself is the same in all of them.
python_for_venv() {
  local candidate
  for candidate in python3 /usr/bin/python3 python3.{11,12,13,10}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

# Is every file that the pinned wheels installed there, at its size? Finds what an interrupted installation left.
venv_is_whole() {
  [[ -x .venv/bin/python ]] && .venv/bin/python - "$requirements" <<'PY' 2>/dev/null
import importlib.metadata, os, re, sys
for line in open(sys.argv[1]):
    pin = re.match(r"([\w-]+)==(\S+)", line)
    if not pin:
        continue
    wheel = importlib.metadata.distribution(pin[1])
    if wheel.version != pin[2] or not wheel.files:
        sys.exit(1)
    for file in wheel.files:
        if file.size is not None and os.path.getsize(file.locate()) != file.size:
            sys.exit(1)
PY
}

# Nothing where there is no .venv yet.
venv_torch() { compgen -G "$PWD/.venv/lib/python3.*/site-packages/torch" || true; }

make_venv() {
  local python sum
  sum=$(sha256sum <"$requirements")
  [[ $(cat "$venv_stamp" 2>/dev/null) == "$sum" ]] && is_torch "$(venv_torch)" && return
  if ! venv_is_whole; then
    [[ $(uname -m) == x86_64 || $(uname -m) == aarch64 ]] || fail "the pinned wheels are for x86-64 and 64-bit Arm; name a Torch 2.11 for $(uname -m) with SHOAL_TORCH=<dir>"
    python=$(python_for_venv)
    [[ -n $python ]] || fail "no Python 3.10 to 3.13 with the venv module (tried python3, /usr/bin/python3, and python3.10 to python3.13)." \
      "Install one, or name a Torch 2.11 with SHOAL_TORCH=<dir>."
    say "installing Torch 2.11.0 into .venv (544 MB to download, 1.4 GB on disk)"
    "$python" -m venv --clear .venv
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --no-deps --only-binary=:all: --require-hashes \
      --requirement "$requirements" >&2 || fail "pip could not install Torch (its words are above). Run the same command again to continue."
    venv_is_whole || fail "the installation in .venv is incomplete (is the disk full?). Run the same command again."
  fi
  echo "$sum" >"$venv_stamp"
}

find_torch() {
  local chosen
  if [[ -n ${SHOAL_TORCH:-} ]]; then
    chosen=$(realpath --no-symlinks "$SHOAL_TORCH")
    is_torch "$chosen" || fail "SHOAL_TORCH=$SHOAL_TORCH is not a Torch 2.11 (looked for include/ATen/core/Tensor.h, lib/libtorch_cpu.so and the version)"
    choose "$chosen"
    return
  fi
  chosen=$(cat build/torch-path 2>/dev/null || true)
  [[ -n $chosen && $chosen != "$PWD/.venv/"* ]] && is_torch "$chosen" && return
  if [[ $chosen != "$PWD/.venv/"* ]]; then
    chosen=$(torch_of_python python3)
    if [[ -n $chosen ]] && is_torch "$chosen"; then
      choose "$chosen"
      return
    fi
  fi
  make_venv
  is_torch "$(venv_torch)" || fail "no usable Torch in $PWD/.venv; remove .venv and run the same command again"
  choose "$(venv_torch)"
}

if command -v dpkg-query >/dev/null; then
  install_packages
elif [[ ! -f build/torch-path ]]; then
  say "this is not Debian: install what these Debian 12 packages hold: ${packages[*]}"
fi
find_torch
