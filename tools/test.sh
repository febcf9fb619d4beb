#!/usr/bin/env bash
# Runs every test of the release build, JOBS at a time (default: one a core). A test that is skipped, a whole program or one inside it, and does not
# stand in tests/expected_skips.txt is a failure: what cannot run is heard of.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly log=build/test.log
ctest --preset release --parallel "${JOBS:-$(nproc)}" | tee "$log"
skipped() {
  sed -nE 's/^[[:space:]]+[0-9]+ - ([^ ]+) \((Skipped|Not Run|Disabled)\)$/\1/p' "$log"
  # What GoogleTest says of single tests stands in ctest's own log.
  sed -nE 's/^\[  SKIPPED \] ([[:alnum:]_/]+\.[[:alnum:]_/]+)( .*)?$/\1/p' build/release/Testing/Temporary/LastTest.log
}
expected() { awk '!/^#/ { print $1 }' tests/expected_skips.txt; }
unexpected=$(comm -23 <(skipped | sort -u) <(expected | sort))
[[ -z $unexpected ]] || { printf 'not in tests/expected_skips.txt, and skipped: %s\n' $unexpected >&2; exit 1; }
