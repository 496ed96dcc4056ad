#!/usr/bin/env bash
# licences.sh [CUDA]          prints the licences of what is in the package, as their owners wrote them. CUDA: with the module for GPUs, that this folder's compiler made
# licences.sh --wheel [CUDA]  also those of the libraries that are linked into the wheel's program
source "$(dirname "$0")/lib.sh"
llama="$cache/llama.cpp-$llama_version"
part() { printf '\n\n%s\n%s\n\n' "$1" "----------------------------------------"; }
debian() { part "$1" && cat "/usr/share/doc/$2/copyright"; }

printf 'coppice, and what it contains of others, with their licences.\n'
part coppice && cat "$repo/LICENSE"
part "llama.cpp, with ggml" && cat "$llama/LICENSE"
part "JSON for Modern C++, in llama.cpp" && cat "$llama/licenses/LICENSE-jsonhpp"
part "cpp-httplib, in llama.cpp" && cat "$llama/vendor/cpp-httplib/LICENSE"
part XGrammar && cat "$xgrammar_sources"/{LICENSE,NOTICE}
part "DLPack, in XGrammar" && cat "$xgrammar_sources/3rdparty/dlpack/LICENSE"
part "PicoJSON, in XGrammar" && sed '/\*\//q' "$xgrammar_sources/3rdparty/picojson/picojson.h" # the comment at its head
debian CLI11 libcli11-dev
debian Highway libhwy-dev
debian "marked, in the page" libjs-marked
# Debian lists each of Boost's files, two megabytes of it: only the licence that they have in common.
part Boost && awk '/^License: BSL-1.0$/ {text = ""; on = 1} /^$/ {on = 0} on {text = text $0 "\n"} END {printf "%s", text}' \
  /usr/share/doc/libboost1.81-dev/copyright
wheel=
if [[ ${1:-} == --wheel ]]; then
  wheel=1
  shift
fi
if [[ -n ${1:-} ]]; then part "NVIDIA's CUDA runtime, of which the module for GPUs has the static library" && cat "$1"/licences/*; fi
[[ -n $wheel ]] || exit 0
debian OpenSSL libssl-dev
debian fmt libfmt-dev
debian spdlog libspdlog-dev
debian prometheus-cpp prometheus-cpp-dev
debian "ZeroMQ, under its exception for static linking" libzmq3-dev
debian libjpeg-turbo libturbojpeg0-dev
debian libpng libpng-dev
debian zlib zlib1g-dev
debian libwebp libwebp-dev
debian GIFLIB libgif-dev
debian "libstdc++ and libgcc, under GCC's runtime library exception" libstdc++-12-dev
debian "glibc's start-up files" libc6-dev
