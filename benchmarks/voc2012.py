"""VOC 2012 from one label an image: every method under one recipe, several seeds, several runs side by side.

    python -m benchmarks.voc2012 --images VOCdevkit/VOC2012 --out runs/voc2012 --jobs 6 --json docs/results/voc2012.json

Each run is a `pluralis train` of its own in a folder under --out: what is finished is not repeated, what was
interrupted goes on. The table at the end is made from the finished runs alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RECIPE = "recipes/voc2012/fair.toml"
ROWS: dict[str, list[str]] = {
    "an": ["--method", "an"],
    "em": ["--method", "em"],
    "gr": ["--method", "gr"],
    "gr, head from zero": ["--method", "gr", "--set", "method.start_bias=zero"],
    "all labels": ["--method", "bce", "--set", "data.protocol=complete"],
}


def main(
    images: str, out: Path, jobs: int, seeds: int, settings: list[str], json_file: Path | None
) -> list[dict[str, Any]]:
    extra = [word for setting in settings for word in ("--set", setting)]
    queue = [
        (name, seed, [*arguments, "--seed", str(seed)])
        for seed in range(seeds)
        for name, arguments in ROWS.items()
        if not (_folder(out, name, seed) / "model.json").exists()
    ]
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    while queue or running:
        while queue and len(running) < jobs:
            name, seed, arguments = queue.pop(0)
            folder = _folder(out, name, seed)
            command = [sys.executable, "-m", "pluralis", "train", "--recipe", RECIPE, "--images", images]
            with open(f"{folder}.log", "ab") as log:
                process = subprocess.Popen(
                    [*command, *arguments, *extra, "--out", str(folder)], stdout=log, stderr=subprocess.STDOUT
                )
            running.append((f"{name}, seed {seed}", process))
        time.sleep(0.5)
        for label, process in list(running):
            if process.poll() is not None:
                running.remove((label, process))
                print(f"{time.monotonic() - start:6.0f} s  {label}: exit {process.returncode}", flush=True)
    table = [row for name in ROWS if (row := _row(out, name, seeds))]
    for row in table:
        print(json.dumps({k: v for k, v in row.items() if k != "runs"}))
    if json_file is not None:
        import torch

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        document = {"recipe": RECIPE, "settings": settings, "device": device, "torch": torch.__version__, "rows": table}
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    return table


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name.replace(',', '').replace(' ', '-')}-{seed}"


def _row(out: Path, name: str, seeds: int) -> dict[str, Any] | None:
    runs = []
    for seed in range(seeds):
        path = _folder(out, name, seed) / "model.json"
        if path.exists():
            meta = json.loads(path.read_text())["body"]["meta"]
            last = meta["history"][-1]
            runs.append({"seed": seed, **meta["test"], "seconds": meta["seconds"], "loss": last["loss"]})
            rule = meta["rule"]
    if not runs:
        return None
    row: dict[str, Any] = {"method": name, "seeds": len(runs), "rule": rule}
    for key in ("mAP", "CF1", "OF1", "seconds"):
        values = [run[key] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        row[key] = {"mean": round(statistics.mean(values), 2), "sd": round(spread, 2)}
    return {**row, "runs": runs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", required=True, help="the VOC2012 folder")
    parser.add_argument("--out", type=Path, default=Path("runs/voc2012"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    main(**vars(parser.parse_args()))
