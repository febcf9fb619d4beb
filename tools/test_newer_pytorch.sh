#!/usr/bin/env bash
# Tests the backend of python/ on other PyTorch versions than the pinned 2.11: each VERSION, or the newest that PyPI serves.
#
#   tools/test_newer_pytorch.sh [VERSION ...]
#
# For each it makes the virtual environment build/pytorch-VERSION (0.6 GB to download, 2.5 GB on disk; CUDA cannot be used in it), builds the backend
# against it as docs/pytorch.md says and runs tests/python there; the last lines say what each came to. May be interrupted and run again. Not part of
# `make test`, for its size; what it found stands in docs/pytorch.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/cuda_stand_ins.sh
source tools/cuda_stand_ins.sh

say() { printf 'test_newer_pytorch: %s\n' "$*" >&2; }
fail() {
  printf 'test_newer_pytorch: %s\n' "$@" >&2
  exit 1
}

tools/setup_python.sh # the packages that the build needs, and a Python for which the wheels are pinned
readonly python=.venv-python/bin/python
if (($# == 0)); then
  set -- "$("$python" -m pip index versions torch --disable-pip-version-check 2>/dev/null | sed -nE '1s/^torch \(([0-9.]+)\)$/\1/p')"
fi
for version in "$@"; do
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] ||
    fail "'$version' is no version: PyPI did not say which PyTorch is the newest, or VERSION is not like 2.15.0"
done

# Runs the tests on one version.
test_version() {
  local version=$1 venv=$PWD/build/pytorch-$1 site torch
  # required PACKAGE PATTERN: the name and the version of what the package requires and the pattern finds.
  required() {
    "$venv/bin/python" -c "
import importlib.metadata, re, sys
[found] = filter(None, (re.match(sys.argv[2], text) for text in importlib.metadata.requires(sys.argv[1])))
print(found[1] + found[2])" "$@"
  }
  pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input --quiet "$@" >&2; }
  if [[ ! -f $venv/complete ]]; then
    say "installing PyTorch $version into $venv (0.6 GB to download)"
    "$python" -m venv --clear "$venv" || return
    pip install --no-deps --only-binary=:all: --require-hashes --requirement tools/requirements-python.txt || return
    pip install --no-deps --only-binary=:all: "torch==$version" || return
    # Of CUDA the two small libraries that libtorch_cpu.so needs to load, in the versions that this PyTorch asks for.
    pip install --no-deps --only-binary=:all: "$(required torch '(cuda-toolkit)\[[^]]*\](==[0-9.]+)')" || return
    pip install --no-deps --only-binary=:all: "$(required cuda-toolkit "(nvidia-cuda-runtime)(==[^;]+);.*'cudart'")" \
      "$(required cuda-toolkit "(nvidia-cuda-cupti)(==[^;]+);.*'cupti'")" || return
    site=$("$venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    torch=$site/torch
    make_stand_ins "$venv/lib/cuda_stand_ins" "$torch" "$site" || return
    touch "$venv/complete"
  fi
  say "building the backend against $version"
  pip install --no-build-isolation --no-deps --force-reinstall ./python || return
  say "testing it"
  OMP_NUM_THREADS=1 "$venv/bin/python" -B tests/python/run.py 2>&1 | tee "build/pytorch-$version.log" >&2
}

failed=0
for version in "$@"; do
  log=build/pytorch-$version.log
  rm -f "$log"
  test_version "$version" || failed=1
  outcome=$(grep -sE '^(Ran |OK|FAILED \()' "$log" | paste -sd ' ' || true)
  outcomes+=("PyTorch $version: ${outcome:-stopped before its tests ended}")
done
printf '%s\n' "${outcomes[@]}"
exit $failed
