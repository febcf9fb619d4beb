#!/usr/bin/env bash
# Runs every fuzz target of the release build for SECONDS (default: 30) after another, or those named, from where the last call left them: what they
# found interesting stays in build/fuzz/<target>. An input that breaks something lies in build/fuzz/<target>-crash-*.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly seconds=${SECONDS_EACH:-30} programs=build/release/bin
if ((${#@})); then names=("$@"); else mapfile -t names < <(cd "$programs" && ls -d fuzz_* | sed 's/^fuzz_//' | grep -vx planted); fi
failed=()
for name in "${names[@]}"; do
  printf '== %s, %s s\n' "$name" "$seconds"
  mkdir -p "build/fuzz/$name"
  folders=("build/fuzz/$name")
  [[ ! -d tests/fuzz/seeds/$name ]] || folders+=("tests/fuzz/seeds/$name")
  "$programs/fuzz_$name" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/$name-" "${folders[@]}" || failed+=("$name")
done
((${#failed[@]} == 0)) || { printf 'broken: %s\n' "${failed[@]}" >&2; exit 1; }
