#!/usr/bin/env bash
# Builds and tests the named presets of CMakePresets.json (default: the rooms without Torch under both sets of sanitizers).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
((${#@})) || set -- asan-rooms tsan-rooms
jobs=$(nproc)
for preset in "$@"; do
  printf '== %s\n' "$preset"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" --parallel "$jobs"
  ctest --preset "$preset" --parallel "$jobs"
done
