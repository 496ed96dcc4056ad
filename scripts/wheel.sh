#!/usr/bin/env bash
# wheel.sh            builds the wheel and the tarball, build-wheel/coppice-VERSION-…, and tests them in bare Debians 11 to 13 and in a container
#                     (as root)
# wheel.sh --build    only builds them
# wheel.sh --arm64    the same for 64-bit ARM, in build-wheel-arm64, and under qemu; without the container
# Further arguments go to pytest: -k container, say.
source "$(dirname "$0")/lib.sh"

only_build= preset=wheel machine=x86_64 tests="$repo/tests/wheel"
while :; do
  case ${1:-} in
    --build) only_build=1 ;;
    --arm64) preset=wheel-arm64 machine=aarch64 tests="$repo/tests/wheel/test_wheel.py" ;;
    *) break ;;
  esac
  shift
done
build="$repo/build-$preset"
"$repo/scripts/build.sh" "$preset" coppice
cuda=
[[ $preset != wheel ]] || cuda=$("$repo/scripts/cuda_compiler.sh" --pinned)
"$repo/scripts/licences.sh" --wheel "$cuda" >"$build/copyright"

# The package's tree, in which the program's own kernels and ggml's are for any machine.
rm -rf "$build/tree" "$build"/coppice-*.{whl,tar.gz}
DESTDIR="$build/tree" logged "installing" "$build/install.log" cmake --install "$build" --strip || die "The program could not be installed (log: $build/install.log)."
version=$(sed -nE 's/^project\(coppice VERSION ([0-9.]+) .*/\1/p' "$repo/CMakeLists.txt")
python3 "$repo/packaging/wheel/pack.py" --machine "$machine" --version "$version" --tree "$build/tree/usr" --licences "$build/copyright" --out "$build" >/dev/null ||
  die "The wheel could not be packed."
ln -f "$build"/coppice-*.tar.gz "$build/coppice.tar.gz" # a second name, without the version
for file in "$build"/coppice-*.{whl,tar.gz}; do
  say "$(basename "$file"): $(awk -v n="$(stat -c %s "$file")" 'BEGIN {printf "%.1f", n / 1e6}') MB"
done
[[ -z $only_build ]] || exit 0

((EUID == 0)) || die "The wheel is built. Its test makes bare Debians in a folder, and needs root for that."
"$repo/scripts/packages.sh" debootstrap iproute2 qemu-user-static podman runc netavark iptables catatonit
"$repo/scripts/build.sh" release coppice
python_env venv tests/e2e/requirements.txt "the test clients"
python_env auditwheel packaging/wheel/requirements.txt "auditwheel"
arm64=
[[ $machine != aarch64 ]] || arm64=$("$repo/scripts/arm64_sysroot.sh")
COPPICE_ARM64="$arm64" COPPICE_WHEEL=$(echo "$build"/coppice-*.whl) COPPICE_TARBALL=$(echo "$build"/coppice-*.tar.gz) COPPICE_BARE="$build/bare" COPPICE_DEBIANS="$cache/bare" \
  COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" COPPICE_AUDITWHEEL="$repo/build/auditwheel/bin/auditwheel" PYTHONDONTWRITEBYTECODE=1 \
  "$repo/build/venv/bin/python" -m pytest -q -p no:cacheprovider "$tests" "$@" || die "The wheel's tests failed: see above."
