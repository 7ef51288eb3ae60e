"""The contrast of label-wise embeddings: forward and backward, against all pairs of a small queue, in one run."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses.contrast import label_contrast

ACTIVE, DIM, CLASSES = 64, 128, 80
BARS = {"cpu": 10.0, "cuda": 1.0}  # milliseconds at the largest queue
QUEUES = (0, 512, 2048, 8192)
PAIRS = 512  # places, with two views each, of the straightforward form


def main(device: str = "cpu", json_file: str | None = None, repetitions: int = 30) -> list[dict[str, Any]]:
    """Print a table of times, and give one row for each form and length of the queue."""
    torch.manual_seed(0)
    z, other = (torch.randn(ACTIVE, DIM, device=device, requires_grad=True) for _ in range(2))
    classes = torch.randint(CLASSES, (ACTIVE,), device=device)
    calls: dict[tuple[str, int], Callable[[], Tensor]] = {}
    for size in QUEUES:
        queue = F.normalize(torch.randn(size, DIM, device=device), dim=1)
        kinds = torch.randint(CLASSES, (size,), device=device)
        for variant, twins in (("paper", other), ("released", None)):
            calls[variant, size] = lambda q=queue, k=kinds, v=variant, t=twins: label_contrast(  # type: ignore[misc]
                z, classes, q, k, variant=v, twins=t
            )
    past = F.normalize(torch.randn(2 * PAIRS - ACTIVE, DIM, device=device), dim=1)
    every = torch.cat([classes, torch.randint(CLASSES, (len(past),), device=device)])
    calls["all pairs", PAIRS] = lambda: all_pairs(torch.cat([F.normalize(z, dim=1), past]), every, 0.5)
    seconds = _interleaved(calls, (z, other), repetitions)

    rows = []
    for (form, size), times in seconds.items():
        row: dict[str, Any] = {"form": form, "active": ACTIVE, "queue": size, "device": device}
        row["milliseconds"] = 1e3 * median(times)
        line = f"contrast {form:10} {ACTIVE} active, queue {size:5} {row['milliseconds']:9.3f} ms"
        if size == max(QUEUES):
            row["bar"] = BARS[device.split(":")[0]]
            line += f" (bar {row['bar']:g} ms): {'ok' if row['milliseconds'] <= row['bar'] else 'ABOVE THE BAR'}"
        rows.append(row)
        print(line, flush=True)
    if json_file:
        machine = (
            torch.cuda.get_device_name(device)
            if device.startswith("cuda")
            else platform.processor() or platform.machine()
        )
        facts = {"torch": torch.__version__, "machine": machine, "threads": torch.get_num_threads(), "rows": rows}
        Path(json_file).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return rows


def all_pairs(z: Tensor, classes: Tensor, temperature: float) -> Tensor:
    """Supervised contrast as it is usually written: every embedding against every other, in one square."""
    similar = z @ z.T / temperature
    similar = similar - similar.max(1, keepdim=True).values.detach()
    others = 1 - torch.eye(len(z), device=z.device)
    partners = (classes[:, None] == classes).float() * others
    log_share = similar - (similar.exp() * others).sum(1, keepdim=True).log()
    return -((partners * log_share).sum(1) / partners.sum(1).clamp(min=1)).mean()


def _interleaved(
    calls: dict[tuple[str, int], Callable[[], Tensor]], views: tuple[Tensor, Tensor], repetitions: int
) -> dict[tuple[str, int], list[float]]:
    """Times of all in turn, so that whatever else the machine does meets them alike."""
    seconds: dict[tuple[str, int], list[float]] = {name: [] for name in calls}
    z, other = views
    for repetition in range(repetitions + 3):
        for name, call in calls.items():
            z.grad = other.grad = None
            _wait(z)
            start = perf_counter()
            call().backward()
            _wait(z)
            if repetition >= 3:
                seconds[name].append(perf_counter() - start)
    return seconds


def _wait(z: Tensor) -> None:
    if z.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", dest="json_file", help="write the figures to this file")
    main(**vars(parser.parse_args()))
