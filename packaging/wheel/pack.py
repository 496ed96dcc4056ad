"""Packs an installed tree (bin, lib, share) as a wheel and as a tarball: scripts/wheel.sh. The same tree gives the same bytes."""

import argparse
import base64
import gzip
import hashlib
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

CARRIER = Path(__file__).resolve().parent / "coppice"
PROCESSORS = {"x86_64": "x86-64 processor from SSE4.2 to AMX", "aarch64": "64-bit ARM processor"}
TIME = 315532800  # 1980, where zip files begin


def soname(file: Path) -> str:
    said = subprocess.run(["readelf", "-dW", file], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\(SONAME\).*\[(.*)\]", said)
    return found.group(1) if found else file.name


def contents(root: Path) -> dict[str, Path]:
    """Path in the tree -> file. Wheels have no links, so a library has one name: the one by which others want it."""
    found = {}
    for file in sorted(root.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        name = file.relative_to(root)
        found[str(name.with_name(soname(file)) if name.parts[0] == "lib" else name)] = file
    return found


def mode(name: str, file: Path) -> int:
    return 0o755 if name.startswith("bin/") or os.access(file, os.X_OK) and ".so" in name else 0o644


def metadata(version: str, machine: str) -> str:
    return "\n".join([
        "Metadata-Version: 2.4", "Name: coppice", f"Version: {version}", "Summary: LLM server whose KV cache is one shared tree of blocks",
        "License-Expression: MIT", "License-File: copyright", "Requires-Python: >=3.8", "Classifier: Operating System :: POSIX :: Linux",
        "Description-Content-Type: text/plain", "",
        "It serves GGUF models over OpenAI's and Anthropic's APIs. Text that several requests share is computed once, stored once, and read once in each "
        "step for all of them.", "",
        "The commands: coppice serve MODEL, coppice chat MODEL, coppice models, coppice pull NAME, coppice demo. Python only starts the program. The kernels "
        f"for any {PROCESSORS[machine]} are inside.", ""])


def write_wheel(folder: Path, version: str, machine: str, tree: dict[str, Path], licences: Path) -> Path:
    tag = f"py3-none-manylinux_2_28_{machine}"
    info = f"coppice-{version}.dist-info"
    files = {f"coppice/{name}": (file.read_bytes(), mode(name, file)) for name, file in tree.items() if name.split("/")[0] in ("bin", "lib")}
    files |= {f"coppice/{file.name}": (file.read_bytes(), 0o644) for file in sorted(CARRIER.glob("*.py"))}
    # Man page and completions go where an environment has such things.
    files |= {f"coppice-{version}.data/data/{name}": (file.read_bytes(), 0o644) for name, file in tree.items()
              if name.startswith("share/") and not name.startswith("share/doc/")}
    files |= {f"{info}/METADATA": (metadata(version, machine).encode(), 0o644),
              f"{info}/WHEEL": (f"Wheel-Version: 1.0\nGenerator: coppice\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
              f"{info}/entry_points.txt": (b"[console_scripts]\ncoppice = coppice:main\n", 0o644),
              f"{info}/licenses/copyright": (licences.read_bytes(), 0o644)}
    record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
                     for name, (data, _) in files.items())
    files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)
    path = folder / f"coppice-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (data, bits) in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | bits) << 16
            wheel.writestr(entry, data)
    return path


def write_tarball(folder: Path, version: str, machine: str, tree: dict[str, Path], licences: Path) -> Path:
    top = f"coppice-{version}-linux-{machine}"
    path = folder / f"{top}.tar.gz"
    with open(path, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=TIME) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, file in {**tree, "share/doc/coppice/copyright": licences}.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode, entry.mtime = file.stat().st_size, mode(name, file), TIME
            with file.open("rb") as data:
                tar.addfile(entry, data)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--machine", choices=PROCESSORS, default="x86_64")
    parser.add_argument("--tree", type=Path, required=True, help="with bin, lib and share")
    parser.add_argument("--licences", type=Path, required=True, help="a file of them")
    parser.add_argument("--out", type=Path, required=True, help="the folder for both")
    args = parser.parse_args()
    tree = contents(args.tree)
    for write in (write_wheel, write_tarball):
        print(write(args.out, args.version, args.machine, tree, args.licences))


if __name__ == "__main__":
    main()
