#!/usr/bin/env bash
# arm64_sysroot.sh: makes a folder to build for 64-bit ARM with, and to run that here, and prints its path. Nothing is
# installed, and no foreign architecture is added to the system. In it:
#   sysroot              Debian's arm64 packages: the libraries of packages.txt, with what they want in turn, unpacked
#   shlibs               which package each of these libraries comes from
#   qemu-aarch64-static  the emulator
#   arm64.cmake          cmake/arm64.cmake, which finds these beside itself: folders of the cache outlive a checkout
source "$(dirname "$0")/lib.sh"
"$repo/scripts/packages.sh"

made_by=1 # one more when what is made changes: what was compiled with it is compiled again
# Of packages.txt what is compiled with or looked at, not the tools. The sanitizers' libraries are for this machine.
mapfile -t libraries < <(grep -E '^(lib|nlohmann|prometheus)' "$repo/scripts/packages.txt" | grep -v '^libclang-rt')
libraries+=(libstdc++-12-dev)
key=$({ cat "$repo/cmake/arm64.cmake"; echo "$made_by ${libraries[*]}"; } | sha256sum | cut -c1-8)
made="$cache/arm64-$key"
if [[ -e $made/.complete ]]; then
  echo "$made"
  exit
fi
work="$made.incoming"

# fetch FOLDER ARCHITECTURE COMMAND...: runs an apt-get command that downloads, with a state of its own in FOLDER, where
# the packages come, too.
fetch() {
  local folder=$1 architecture=$2
  shift 2
  mkdir -p "$folder/lists/partial" "$folder/archives/partial"
  : >"$folder/status"
  cat >"$folder/apt.conf" <<END
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Dir::State "$folder";
Dir::State::status "$folder/status";
Dir::Cache "$folder";
END
  (cd "$folder/archives" && export APT_CONFIG="$folder/apt.conf" && apt-get -q update && apt-get -q -y "$@")
}

# get NAME ARCHITECTURE COMMAND...: fetch into $work/NAME.
get() {
  local log="$cache/logs/arm64-$1.log"
  logged "$1" "$log" fetch "$work/$1" "${@:2}" ||
    die "Cannot download Debian's packages ($1): is there a network? (log: $log)"
}

unpack() {
  local deb link without=(--exclude './usr/share/man' --exclude './usr/share/doc' --exclude './usr/share/locale')
  mkdir "$work/sysroot"
  for deb in "$work"/libraries/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/sysroot" "${without[@]}" || return
    dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./shlibs 2>/dev/null >>"$work/shlibs" || true # not every package has it
  done
  for deb in "$work"/emulator/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work" --strip-components=3 ./usr/bin/qemu-aarch64-static || return
  done
  # Links into the root of a machine that isn't there.
  cd "$work/sysroot"
  find . -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath -m --relative-to "$(dirname "$link")" ".$(readlink "$link")")" "$link"
  done
}

need_disk "$cache" 1200 "Debian's libraries for ARM"
say "Fetching Debian's arm64 libraries (into $made)"
rm -rf "$work"
mkdir -p "$work/emulator/archives"
get libraries arm64 install --download-only "${libraries[@]}"
get emulator "$(dpkg --print-architecture)" download qemu-user-static
cp "$repo/cmake/arm64.cmake" "$work"
log="$cache/logs/arm64-unpack.log"
shopt -s nullglob
logged "unpacking" "$log" unpack || die "Debian's packages could not be unpacked (log: $log)"
rm -rf "$work"/{libraries,emulator}
touch "$work/.complete"
mv "$work" "$made"
echo "$made"
