#!/usr/bin/env bash
# Are the C++ sources in the format of .clang-format? With --fix they are rewritten. Names the folders to look at, or takes them as arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(--dry-run --Werror)
if [[ ${1:-} == --fix ]]; then
  mode=(-i)
  shift
fi
((${#@})) || set -- src tests apps bench python examples

# Releases of clang-format disagree with one another; 14 is Debian 12's.
formatter=$(command -v clang-format-14 || command -v clang-format || true)
[[ -n $formatter && $("$formatter" --version) == *" 14."* ]] || { echo "check_format: clang-format 14 is needed (Debian 12's clang-format, Ubuntu 24.04's clang-format-14)" >&2; exit 1; }
folders=()
for folder in "$@"; do [[ -e $folder ]] && folders+=("$folder"); done
((${#folders[@]})) || exit 0
find "${folders[@]}" -name '*.h' -print0 -o -name '*.cpp' -print0 |
  xargs --null --no-run-if-empty --max-args=16 --max-procs="$(nproc)" "$formatter" "${mode[@]}" --style=file ||
  { echo "check_format: run 'make format'" >&2; exit 1; }
