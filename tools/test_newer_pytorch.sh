#!/usr/bin/env bash
# Tests the backend of python/ on another PyTorch than the pinned 2.11: VERSION, or the newest that PyPI serves.
#
#   tools/test_newer_pytorch.sh [VERSION]
#
# Makes the virtual environment build/pytorch-VERSION (about 3 GB to download, 7 GB on disk), builds the backend against it as docs/pytorch.md says
# and runs tests/python there. May be interrupted and run again. Not part of `make test`, for its size; what it found stands in docs/pytorch.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'test_newer_pytorch: %s\n' "$*" >&2; }
fail() {
  printf 'test_newer_pytorch: %s\n' "$@" >&2
  exit 1
}
(($# < 2)) || fail "usage: tools/test_newer_pytorch.sh [VERSION]"

tools/setup_python.sh # the packages that the build needs, and a Python for which the wheels are pinned
readonly python=.venv-python/bin/python
version=${1:-$("$python" -m pip index versions torch --disable-pip-version-check 2>/dev/null | sed -nE '1s/^torch \(([0-9.]+)\)$/\1/p')}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "'$version' is no version: PyPI did not say which PyTorch is the newest, or VERSION is not like 2.15.0"

readonly venv=$PWD/build/pytorch-$version
[[ -x $venv/bin/python ]] || "$python" -m venv --clear "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >&2 || fail "pip failed (its words are above). Run the same command again to continue."; }
say "installing PyTorch $version into $venv (about 3 GB to download)"
pip install --quiet --no-deps --only-binary=:all: --require-hashes --requirement tools/requirements-python.txt
pip install --quiet --only-binary=:all: "torch==$version"
say "building the backend against it"
pip install --quiet --no-build-isolation --no-deps --force-reinstall ./python
say "testing it"
OMP_NUM_THREADS=1 "$venv/bin/python" -B tests/python/run.py
