"""What makes a network with norms that stay fast on a CPU: norms folded into convolutions, and memory that is kept.

python -m benchmarks.cpu_network --json docs/results/cpu-network.json

Training steps and predictions of each kind in processes of their own, which take turns; ratios are to PyTorch's own.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pluralis.freed_memory import keep_freed_memory
from pluralis.losses import create_loss
from pluralis.models import create_model, efficientnet, resnet

CLASSES = 20
KINDS = ("plain", "folded", "folded and kept")
CASES = (("efficientnet_lite0", 256, 32), ("efficientnet_lite0", 128, 32), ("resnet18", 224, 32), ("resnet50", 64, 4))


def main(rounds: int, json_file: str | None) -> list[dict[str, Any]]:
    rows = []
    for case in CASES:
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind, runs in found.items():
                command = [sys.executable, "-m", "benchmarks.cpu_network", "--child", kind, *map(str, case)]
                runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        for kind, runs in found.items():
            row: dict[str, Any] = dict(zip(("backbone", "size", "batch"), case, strict=True)) | {"kind": kind}
            for key in ("training img/s", "prediction img/s", "peak megabytes"):
                mine, plain = (statistics.median(run[key] for run in some) for some in (runs, found["plain"]))
                row |= {key: round(mine, 1), f"{key}, ratio": round(mine / plain, 2)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if json_file:
        facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rounds": rounds, "rows": rows}
        Path(json_file).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return rows


def child(kind: str, backbone: str, size: int, batch: int) -> None:
    if kind == "plain":
        for module in (efficientnet, resnet):
            module.normed = lambda conv, norm, x: norm(conv(x))  # type: ignore[attr-defined]
    elif "kept" in kind and not keep_freed_memory():
        sys.exit("no glibc, or its malloc is set up by the environment")
    net, loss = create_model(backbone, CLASSES), create_loss("an")
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net.eval()  # statistics stay, as those of a backbone that was trained before
    pixels = torch.randint(0, 256, (batch, 3, size, size)).float()
    labels = torch.zeros(batch, CLASSES)
    labels[:, 0] = 1

    def train() -> None:
        loss(net(pixels), labels).backward()
        net.zero_grad()

    def predict() -> None:
        with torch.no_grad():
            net(pixels)

    speeds = {"training img/s": _speed(train, batch), "prediction img/s": _speed(predict, batch)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(speeds | {"peak megabytes": peak}))


def _speed(run: Callable[[], None], batch: int, steps: int = 6) -> float:
    run()
    start = time.perf_counter()
    for _ in range(steps):
        run()
    return steps * batch / (time.perf_counter() - start)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", default=None)
    parser.add_argument("--child", nargs=4, metavar=("KIND", "BACKBONE", "SIZE", "BATCH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child[:2], *map(int, given.child[2:]))
    else:
        main(given.rounds, given.json)
