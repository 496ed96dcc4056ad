#!/usr/bin/env bash
# packages.sh [PACKAGE...]: installs the Debian packages of packages.txt, or these, that are missing: as root, or through sudo when it asks nothing.
# COPPICE_SKIP_PACKAGES=1 leaves that to you (another distribution, another package manager).
source "$(dirname "$0")/lib.sh"

[[ -z ${COPPICE_SKIP_PACKAGES:-} ]] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  die "This is not Debian: install the like of scripts/packages.txt and set COPPICE_SKIP_PACKAGES=1."
fi

wanted=("$@")
(($#)) || mapfile -t wanted < <(grep -vE '^(#|$)' "$repo/scripts/packages.txt")
present=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qx "installed $package" <<<"$present" || missing+=("$package")
done
((${#missing[@]})) || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if ((EUID == 0)); then
  sudo=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  sudo=(sudo -n)
else
  as_root="su -c"
  ! command -v sudo >/dev/null || as_root="sudo sh -c"
  die "Packages are missing; please run:  $as_root 'apt-get update && ${install[*]}'"
fi

need_disk / 2000 "installing ${#missing[@]} packages"
say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
log=$(mktemp -d)/packages.log
env=(env DEBIAN_FRONTEND=noninteractive)
update_log=$(dirname "$log")/update.log
logged "package lists" "$update_log" "${sudo[@]}" "${env[@]}" apt-get -q update ||
  die "Cannot fetch Debian's package lists: is there a network? (log: $update_log)"
if ! logged "packages" "$log" "${sudo[@]}" "${env[@]}" "${install[@]}"; then
  # Without a network apt-get update only warns.
  ! grep -qE 'Failed to fetch|Could not resolve|Could not connect' "$update_log" "$log" ||
    die "Cannot download Debian's packages: is there a network? (logs: $update_log, $log)"
  die "Debian's packages could not be installed: $(grep -m1 '^E:' "$log" || echo 'see the log') (log: $log)"
fi
