#!/usr/bin/env bash
# Runs every fuzz target of the release build for SECONDS_EACH (default: 30), or those named, one a core at a time, from where the last call left them:
# what they found interesting stays in build/fuzz/<target>. An input that breaks something lies in build/fuzz/<target>-crash-*, what was printed in
# build/fuzz/<target>.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export programs=build/release/bin SECONDS_EACH=${SECONDS_EACH:-30}

fuzz() {
  local name=$1 folders=("build/fuzz/$1")
  mkdir -p "build/fuzz/$name"
  [[ ! -d tests/fuzz/seeds/$name ]] || folders+=("tests/fuzz/seeds/$name")
  if "$programs/fuzz_$name" -max_total_time="$SECONDS_EACH" -timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/$name-" "${folders[@]}" >"build/fuzz/$name.log" 2>&1; then
    printf '%s: %s inputs in %s s\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log")" "$SECONDS_EACH"
  else
    cat "build/fuzz/$name.log"
    printf '%s: BROKEN\n' "$name"
    return 1
  fi
}
export -f fuzz

if ((${#@})); then names=("$@"); else mapfile -t names < <(cd "$programs" && ls -d fuzz_* | sed 's/^fuzz_//' | grep -vx planted); fi
((${#names[@]})) || { echo "fuzz: no targets: was there a clang++ with libFuzzer when the build was configured?" >&2; exit 1; }
mkdir -p build/fuzz
printf '%s\0' "${names[@]}" | xargs -0 --max-procs="$(nproc)" -I{} bash -c 'set -euo pipefail; fuzz {}'
