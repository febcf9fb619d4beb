#!/usr/bin/env bash
# Builds and tests the named presets of CMakePresets.json (default: the rooms without Torch under both sets of sanitizers).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
((${#@})) || set -- asan-rooms tsan-rooms
jobs=$(nproc)
failed=()
# Of a program that fails, its failures: the names of the hundreds of tests that passed would bury them.
export GTEST_BRIEF=1
for preset in "$@"; do
  printf '== %s\n' "$preset"
  # All presets run, whichever fail: what one of them finds says nothing about the others.
  { cmake --preset "$preset" >/dev/null && cmake --build --preset "$preset" --parallel "$jobs" &&
    ctest --preset "$preset" --parallel "$((2 * jobs))"; } || failed+=("$preset")
done
((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[*]}" >&2; exit 1; }
