#!/usr/bin/env bash
# cuda_compiler.sh           prints the folder of CUDA, with nvcc 12.4 or newer: this machine's, or else the pinned one
# cuda_compiler.sh --pinned  that of scripts/cuda_compiler.txt, from PyPI (100 MB), which needs no root and no driver
source "$(dirname "$0")/lib.sh"

if [[ ${1:-} != --pinned ]]; then
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [[ -x $nvcc ]] || continue
    version=$("$nvcc" --version | sed -nE 's/.*release ([0-9.]+),.*/\1/p')
    if printf '12.4\n%s\n' "$version" | sort -CV; then
      dirname "$(dirname "$(readlink -f "$nvcc")")"
      exit
    fi
    say "$nvcc is of CUDA $version; 12.4 is wanted, so another is taken."
  done
fi

wanted="$repo/scripts/cuda_compiler.txt"
made="$cache/cuda-$(sha256sum "$wanted" | cut -c1-8)"
if [[ ! -e $made/.complete ]]; then
  need_disk "$cache" 800 "CUDA's compiler"
  "$repo/scripts/packages.sh"
  work="$made.incoming"
  rm -rf "$work"
  mkdir -p "$work/packages"
  say "Fetching CUDA's compiler, 100 MB (into $made)"
  logged "environment" "$cache/logs/cuda.log" /usr/bin/python3 -m venv "$work/venv" ||
    die "Python cannot make a virtual environment (log: $cache/logs/cuda.log)"
  logged "CUDA's compiler" "$cache/logs/cuda.log" "$work/venv/bin/pip" download --no-deps --only-binary=:all: --require-hashes -r "$wanted" -d "$work/packages" ||
    die "Cannot download what $wanted names: is there a network? (log: $cache/logs/cuda.log)"
  for package in "$work"/packages/*.whl; do python3 -m zipfile -e "$package" "$work/unpacked"; done
  mv "$work"/unpacked/nvidia/cu* "$work/cuda"
  mkdir "$work/cuda/licences"
  cp "$work"/unpacked/nvidia_cuda_runtime-*/licenses/* "$work/cuda/licences"
  find "$work/cuda" -path '*/bin/*' -type f -exec chmod +x {} +
  # By these names CMake looks for them.
  ln -s lib "$work/cuda/lib64"
  (cd "$work/cuda/lib" && ln -s libcudart.so.* libcudart.so)
  touch "$work/cuda/.complete"
  rm -rf "$made"
  mv "$work/cuda" "$made"
  rm -rf "$work"
fi
echo "$made"
