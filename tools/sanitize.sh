#!/usr/bin/env bash
# sanitize.sh [PRESET ...] [-- COMMAND ...]
# Builds and tests the named presets of CMakePresets.json (default: the rooms without Torch under both
# sets of sanitizers). While the tests of one run, which wait most of the time, the next is built;
# beside those of the last runs the command, and it runs when there is none to run beside, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
presets=()
while (($#)) && [[ $1 != -- ]]; do
  presets+=("$1")
  shift
done
readonly beside=("${@:2}")
((${#presets[@]})) || presets=(tsan-rooms asan-rooms)
jobs=$(nproc)
failed=()
testing= # the preset whose tests run, and their process
tests=
# Of a program that fails, its failures: the names of the hundreds of tests that passed would bury them.
export GTEST_BRIEF=1
trap '[[ -z $tests ]] || kill "$tests"' EXIT

end_tests() {
  [[ -n $tests ]] || return 0
  wait "$tests" || failed+=("$testing")
  tests=
  printf '== tests of %s\n' "$testing"
  cat "build/$testing/tests.log"
}

# All presets run, whichever fail: what one of them finds says nothing about the others.
for preset in "${presets[@]}"; do
  printf '== build of %s\n' "$preset"
  # The tests go first: some of them measure time.
  if cmake --preset "$preset" >/dev/null && nice -n 19 cmake --build --preset "$preset" --parallel "$jobs"; then
    end_tests
    testing=$preset
    ctest --preset "$preset" --parallel "$((2 * jobs))" >"build/$preset/tests.log" 2>&1 &
    tests=$!
  else
    failed+=("$preset")
  fi
done
if ((${#beside[@]})); then
  printf '== %s\n' "${beside[*]}"
  nice -n 19 "${beside[@]}" || failed+=("${beside[*]}")
fi
end_tests
((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
