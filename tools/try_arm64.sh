#!/usr/bin/env bash
# Compiles the last commit of this tree for 64-bit Arm, on a machine of another kind, and runs test programs of it in an emulator of that processor:
# tools/try_arm64.sh [PROGRAM...], by default base_test wire_test ops_test, which takes twenty minutes on two cores (base_test alone less than one).
# Needs debootstrap, g++-aarch64-linux-gnu and qemu-user, and 6 GB in SHOAL_TRY_FOLDER (default: /var/tmp/shoal-distributions), where what it has made
# lies until you remove it; the next try is a short one. Not part of CI. All of collective_test takes more than 12 GB in qemu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly place=${SHOAL_TRY_FOLDER:-/var/tmp/shoal-distributions}/arm64
readonly root=$place/root torch=$place/torch/torch clone=$place/shoal
readonly packages=libstdc++-12-dev,libc6-dev,libgcc-12-dev,libfmt-dev,libspdlog-dev,libcli11-dev,libtomlplusplus-dev,nlohmann-json3-dev,libhwy-dev,libsentencepiece-dev,libonig-dev,libutf8proc-dev,zlib1g-dev,libgtest-dev,libgmock-dev,libbenchmark-dev,libssl-dev
programs=("$@")
((${#programs[@]})) || programs=(base_test wire_test ops_test)

for tool in debootstrap aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$tool" >/dev/null || {
    printf 'try_arm64: %s is missing: apt-get install debootstrap g++-aarch64-linux-gnu qemu-user\n' "$tool" >&2
    exit 1
  }
done
mkdir -p "$place"

# Debian's packages for Arm, unpacked and not configured: nothing of them is executed but libraries, in the emulator.
if [[ ! -e $root/.shoal-complete ]]; then
  rm -rf "$root"
  debootstrap --arch=arm64 --download-only --variant=minbase --include="$packages" bookworm "$root" http://deb.debian.org/debian
  for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb --extract "$package" "$root"; done
  touch "$root/.shoal-complete"
fi
if [[ ! -e $torch/lib/libtorch_cpu.so ]]; then
  rm -rf "$place/wheels" "$place/torch"
  python3 -m pip download --disable-pip-version-check --no-input --no-deps --only-binary=:all: --require-hashes --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_25_aarch64 --platform manylinux2014_aarch64 \
    --requirement tools/requirements-torch.txt --dest "$place/wheels"
  for wheel in "$place"/wheels/*.whl; do python3 -m zipfile --extract "$wheel" "$place/torch"; done
fi

[[ -d $clone ]] || git clone --quiet . "$clone"
git -C "$clone" fetch --quiet "$PWD" HEAD
git -C "$clone" checkout --quiet --force --detach FETCH_HEAD
cat >"$place/toolchain.cmake" <<TOOLCHAIN
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
TOOLCHAIN
cmake -S "$clone" --preset release -DCMAKE_TOOLCHAIN_FILE="$place/toolchain.cmake" -DSHOAL_TORCH="$torch"
cmake --build "$clone/build/release" --target "${programs[@]}"

failed=()
for program in "${programs[@]}"; do
  OMP_NUM_THREADS=1 qemu-aarch64 -L "$root" "$clone/build/release/bin/$program" --gtest_brief=1 || failed+=("$program")
done
if ((${#failed[@]})); then
  printf 'try_arm64: failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
printf 'try_arm64: %s pass\n' "${programs[*]}"
