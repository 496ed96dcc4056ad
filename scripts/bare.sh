#!/usr/bin/env bash
# bare.sh [COMMAND...]: runs a command (make demo) in a fresh clone of HEAD on a newcomer's machine: a bare Debian 12 in a folder, with git and
# make. What was downloaded and the compiler's cache are those of this machine; packages, tools and builds are not. Needs root and 4 GB
# of disk (2.4 GB were taken; the caches grow, too).
# The machine stays in build-bare/machine until the next call. Status 77, with the reason as last line: it can't be made here.
source "$(dirname "$0")/lib.sh"
command=("$@")
(($#)) || command=(make demo)

cannot() {
  printf 'No bare machine is made: %s.\n' "$1"
  exit 77
}
((EUID == 0)) || cannot "that needs root"
command -v debootstrap >/dev/null || command -v apt-get >/dev/null || cannot "there is no debootstrap here"
unshare --mount --pid --fork true 2>/dev/null || cannot "this machine lets nobody mount"
folder="$repo/build-bare"
mkdir -p "$folder"
rm -f "$folder/node"
{ mknod "$folder/node" c 1 3 && : >"$folder/node"; } 2>/dev/null || cannot "device files don't work in $folder"
rm -f "$folder/node"
need_disk "$folder" 4000 "a newcomer's machine"
"$repo/scripts/packages.sh" debootstrap python3-minimal

[[ -z $(git -C "$repo" status --porcelain --untracked-files=no) ]] ||
  say "The clone has the last commit, and not what was changed since"
saved="$cache/bare"
mkdir -p "$saved/archives/partial" "${CCACHE_DIR:=$HOME/.cache/ccache}"
options=(--mount "/var/cache/apt/archives=$saved/archives" --mount "$HOME/.cache/ccache=$CCACHE_DIR")
for file in "$cache"/*.{tar.gz,whl} "$pinned_gemma3"; do
  [[ ! -e $file ]] || options+=(--download "$file")
done
say "Making a bare Debian, and running there: ${command[*]}"
exec python3 "$repo/scripts/bare_debian.py" --pristine "$pristine_debian" --machine "$folder/machine" --repo "$repo" "${options[@]}" \
  -- "${command[@]}"
