#!/usr/bin/env python3
"""A GPU's results: gpu.py FOLDER RESULTS joins what scripts/bench-cuda.sh measured into RESULTS/CARD.json.

The file: {"device", "driver", "date", "attention": [row], "products": [row], "steps": [row]}; the first row of each list is
{"case": "copy", "tb_s"}, the bandwidth of a device-to-device copy in that run. The others have "case", "us" and "floor_us" or
"bound_us": the different bytes that must be read over that bandwidth. A step has "parts", too: microseconds of one launch of each
kind. "server", "experts", "FlashInfer VERSION" and "PAT VERSION", where they were measured, have the rows of gpu_server.py, gpu_experts.py,
gpu_flashinfer.py and gpu_pat.py. Other lists of a file that is there (other head sizes, other programs) were measured apart and stay.
"""

import datetime
import json
import pathlib
import subprocess
import sys

STAGES = ("attention", "products", "steps")


def parts_of(log):
    """The times that step_cuda_bench prints below each step: {kind of launch: us}, in the steps' order."""
    lines = [line.split() for line in log.splitlines() if line.startswith("   norm ")]
    return [{name: float(us) for name, us in zip(line[::2], line[1::2])} for line in lines]


def joined(folder):
    """What the stages wrote, as one file of results."""
    parts = [json.loads((folder / f"{stage}.json").read_text()) for stage in STAGES]
    devices = {part["device"] for part in parts}
    if len(devices) != 1:
        raise SystemExit(f"The stages ran on different GPUs: {', '.join(sorted(devices))}")
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"], check=True,
                            capture_output=True, text=True).stdout.strip()
    found = {"device": devices.pop(), "driver": driver, "date": datetime.date.today().isoformat()}
    found |= {stage: part[stage] for stage, part in zip(STAGES, parts)}
    for beside in ("server", "experts"):
        if (file := folder / f"{beside}.json").exists():
            found[beside] = json.loads(file.read_text())
    for name in ("FlashInfer", "PAT"):
        if (other := folder / f"{name.lower()}.json").exists():
            measured = json.loads(other.read_text())
            found[f"{name} {measured['version']}"] = measured["rows"]
    for row, times in zip(found["steps"][1:], parts_of((folder / "steps.log").read_text()), strict=True):
        row["parts"] = times
    return found


def name_of(device):
    """h200 of "NVIDIA H200"; other words stay, with hyphens."""
    return device.lower().removeprefix("nvidia ").replace(" ", "-")


def text_of(found):
    """JSON with one line for each row."""
    lines = []
    for key, value in found.items():
        rows = ",\n    ".join(json.dumps(row) for row in value) if isinstance(value, list) else ""
        lines.append(f'  "{key}": [\n    {rows}\n  ]' if rows else f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    measured = joined(pathlib.Path(sys.argv[1]))
    file = pathlib.Path(sys.argv[2]) / f"{name_of(measured['device'])}.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(text_of(measured | {key: value for key, value in before.items() if key not in measured}))
    print(file)
