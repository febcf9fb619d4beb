#!/usr/bin/env bash
# Tries the last commit of this tree on another distribution: tools/try_distribution.sh trixie|noble [COMMAND]. Makes a bare chroot of it with
# debootstrap (once), clones this repository into it, and runs COMMAND in the clone, by default all that a newcomer and then CI would run: over an
# hour on two cores. Needs root, debootstrap and 15 GB. The chroots lie in SHOAL_TRY_FOLDER (default: /var/tmp/shoal-distributions) until you
# remove them; the clone in one keeps its build, so that the next try is a short one. Not part of CI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  printf 'try_distribution: %s\n' "$@" >&2
  exit 1
}

readonly name=${1:-}
readonly command=${2:-tools/setup_python.sh && make train && make test}
readonly root=${SHOAL_TRY_FOLDER:-/var/tmp/shoal-distributions}/$name
components=main
case $name in
  trixie) mirror=http://deb.debian.org/debian script=trixie keyring=/usr/share/keyrings/debian-archive-keyring.gpg ;;
  # All of Ubuntu's releases are made by one script of debootstrap, which knows by name only those that are older than it.
  noble) mirror=http://archive.ubuntu.com/ubuntu components+=,universe script=gutsy keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
  *) fail "usage: tools/try_distribution.sh trixie|noble [COMMAND]    (Debian 13 or Ubuntu 24.04)" ;;
esac
((EUID == 0)) || fail "chroot and debootstrap need root: run it with sudo"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"

# A mount namespace of its own: what is mounted into the chroot is gone when this script ends, however it ends, so that the chroot can be removed
# without reaching this machine's devices.
if [[ -z ${SHOAL_TRY_UNSHARED:-} ]]; then
  SHOAL_TRY_UNSHARED=1 exec unshare --mount --propagation private "$0" "$@"
fi

if [[ ! -e $root/.shoal-complete ]]; then
  checked=(--keyring="$keyring")
  if [[ ! -e $keyring ]]; then
    printf 'try_distribution: %s is missing, so the signature of %s is not checked\n' "$keyring" "$mirror" >&2
    checked=(--no-check-gpg)
  fi
  mkdir -p "$root"
  debootstrap "${checked[@]}" --variant=minbase --components="$components" "$name" "$root" "$mirror" "$script"
  touch "$root/.shoal-complete"
fi
for folder in dev proc sys; do mount --rbind "/$folder" "$root/$folder"; done
# How this machine reaches the network.
cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
[[ ! -e /etc/pip.conf ]] || cp /etc/pip.conf "$root/etc/pip.conf"

inside() {
  local variable passed=()
  for variable in http_proxy https_proxy no_proxy PIP_INDEX_URL PIP_CERT PIP_DEFAULT_TIMEOUT SSL_CERT_FILE JOBS; do
    [[ -z ${!variable:-} ]] || passed+=("$variable=${!variable}")
  done
  env --ignore-environment HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${passed[@]}" \
    chroot "$root" bash -euo pipefail -c "$1"
}

# The README asks for these.
if [[ ! -e $root/usr/bin/make || ! -e $root/usr/bin/git ]]; then
  inside 'apt-get update --quiet --quiet && DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends \
    git make python3 ca-certificates'
  cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
# Its own files alone are in the clone: nothing that this machine's build left.
if [[ ! -e $root/root/shoal/.git ]]; then
  git clone --quiet --no-local . "$root/root/shoal"
else
  git -C "$root/root/shoal" fetch --quiet "$PWD" HEAD
  git -C "$root/root/shoal" reset --quiet --hard FETCH_HEAD
  git -C "$root/root/shoal" clean --quiet --force -d
fi
inside ". /etc/os-release && echo \"== \$PRETTY_NAME, commit \$(git -C /root/shoal rev-parse --short HEAD)\"; cd /root/shoal; $command"
