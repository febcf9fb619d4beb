#!/usr/bin/env bash
# Runs every test of the release build on JOBS cores (default: all). A test that is skipped, a whole program or one inside it, and does not
# stand in tests/expected_skips.txt is a failure: what cannot run is heard of. The tests that SHOAL_MUST_RUN names, separated by spaces, may not be
# skipped even when they stand there; .ci/run sets it for what it has installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly log=build/test.log
# Two slots a core: shoal_schedule() in cmake/targets.cmake says how many a test takes.
ctest --preset release --parallel "$((2 * ${JOBS:-$(nproc)}))" | tee "$log"
skipped() {
  sed -nE 's/^[[:space:]]+[0-9]+ - ([^ ]+) \((Skipped|Not Run|Disabled)\)$/\1/p' "$log"
  # What GoogleTest says of single tests stands in ctest's own log.
  sed -nE 's/^\[  SKIPPED \] ([[:alnum:]_/]+\.[[:alnum:]_/]+)( .*)?$/\1/p' build/release/Testing/Temporary/LastTest.log
}
expected() { awk '!/^#/ { print $1 }' tests/expected_skips.txt | grep -vxF -f <(tr ' ' '\n' <<<"${SHOAL_MUST_RUN:-}") || true; }
unexpected=$(comm -23 <(skipped | sort -u) <(expected | sort))
[[ -z $unexpected ]] || { printf 'skipped, and not in tests/expected_skips.txt or named by SHOAL_MUST_RUN: %s\n' $unexpected >&2; exit 1; }
