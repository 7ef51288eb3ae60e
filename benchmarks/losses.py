"""Forward and backward of every loss against PyTorch's binary cross-entropy on the same logits, in one run."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.labels import Labels
from pluralis.losses import LOSSES, create_loss
from pluralis.losses.pu import adaptive_temperature, variational
from pluralis.losses.soft import soft_em

BAR = 3.0
SIZES = {(64, 80): 300, (1024, 10_000): 15}  # shape: repetitions
FLOOR = "cross-entropy"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in LOSSES},
    "selection-rate": ("selection", {"mechanism": "rate", "rate": 0.5}),
    "selection-several": ("selection", {}),
}
SEVERAL = 3  # written labels of a row of `selection-several`; of all others one
# The losses that are only found inside a method, with what it gives them.
INNER = ("variational", "vpu", "soft-em")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main(
    device: str = "cpu", json_file: str | None = None, dtype: str = "float32", memory: bool = False
) -> list[dict[str, Any]]:
    """Print a table of times and ratios, and give one row for each loss and size."""
    rows = []
    for shape, repetitions in SIZES.items():
        logits, labels = _inputs(shape, device, dtype)
        calls = {name: _call(name, logits, labels) for name in (FLOOR, *ROWS, *INNER)}
        seconds = _interleaved(calls, logits, repetitions)
        for name, call in calls.items():
            ratio = median(seconds[name]) / median(seconds[FLOOR])
            row = {"loss": name, "shape": list(shape), "device": device, "dtype": dtype}
            row |= {"milliseconds": 1e3 * median(seconds[name]), "ratio": ratio, "bar": BAR}
            if device.startswith("cuda"):
                row["peak_megabytes"] = _peak_megabytes(call, logits)
            elif memory and shape == max(SIZES):
                row["peak_megabytes"] = _peak_in_a_child(name, shape, dtype)
            rows.append(row)
            _show(row)
    if json_file:
        machine = (
            torch.cuda.get_device_name(device)
            if device.startswith("cuda")
            else platform.processor() or platform.machine()
        )
        facts = {"torch": torch.__version__, "machine": machine, "threads": torch.get_num_threads(), "rows": rows}
        Path(json_file).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return rows


def _inputs(shape: tuple[int, int], device: str, dtype: str) -> tuple[Tensor, Tensor]:
    """Logits, and labels of which each row has one present and one absent."""
    n, c = shape
    torch.manual_seed(0)
    logits = torch.randn(n, c, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    labels = torch.zeros(n, c, dtype=torch.int8, device=device)
    labels[torch.arange(n), torch.randint(c, (n,))] = 1
    labels[torch.arange(n), torch.randint(c, (n,))] = -1
    return logits, labels


def _call(name: str, logits: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """The loss in its second epoch: what begins then, such as large-loss selection, has begun."""
    if name == FLOOR:
        target = (labels > 0).to(logits.dtype)
        return lambda: F.binary_cross_entropy_with_logits(logits, target)
    if name in INNER:
        return _inner_call(name, logits, labels)
    loss_name, params = ROWS[name]
    if name == "selection-several":
        labels = labels.index_fill(1, torch.arange(SEVERAL, device=labels.device), 1)
    loss = create_loss(loss_name, **params)
    loss.start(Labels.from_dense(labels.cpu().numpy()))
    loss.to(logits.device)
    return lambda: loss(logits, labels, epoch=1, epochs=2)  # type: ignore[no-any-return]


def _inner_call(name: str, logits: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """As `pu-mlc`, `vpu` and `em-apl` do, the last with a pseudo-label on every other unknown entry."""
    if name == "variational":
        return lambda: variational(logits, labels, gamma=0.15, tau=adaptive_temperature(logits, 2.0))
    if name == "vpu":
        return lambda: variational(logits, labels, no_positive="skip")
    known = labels != 0
    guessed = ~known & (torch.arange(labels.shape[1], device=labels.device) % 2 == 0)
    target = torch.where(known, (labels > 0).float(), 0.1 * guessed)
    weight = known.float() + 0.02 * guessed
    return lambda: soft_em(logits, target, weight, alpha=0.2)


def _interleaved(calls: dict[str, Callable[[], Tensor]], logits: Tensor, repetitions: int) -> dict[str, list[float]]:
    """Times of all in turn, so that whatever else the machine does meets them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repetition in range(repetitions + 3):
        for name, call in calls.items():
            logits.grad = None
            _wait(logits)
            start = perf_counter()
            call().backward()
            _wait(logits)
            if repetition >= 3:
                seconds[name].append(perf_counter() - start)
    return seconds


def _wait(logits: Tensor) -> None:
    if logits.is_cuda:
        torch.cuda.synchronize()


def _peak_megabytes(call: Callable[[], Tensor], logits: Tensor) -> float:
    """Memory beside the logits and labels at the worst moment of a forward and backward pass."""
    logits.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call().backward()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _peak_in_a_child(name: str, shape: tuple[int, int], dtype: str) -> float:
    """The same on the CPU, by a process of its own: what one loss leaves to the allocator, the next would use."""
    command = [sys.executable, "-m", "benchmarks.losses", "--dtype", dtype, "--peak", name, *map(str, shape)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print_peak(name: str, n: int, c: int, dtype: str) -> None:
    small, known = _inputs((64, 80), "cpu", dtype)
    _call(name, small, known)().backward()  # what is loaded at first use is not the loss's
    logits, labels = _inputs((n, c), "cpu", dtype)
    call = _call(name, logits, labels)
    CLEAR.write_text("5")  # resets the high-water mark (Linux)
    before = _status("VmRSS")
    call().backward()
    print((_status("VmHWM") - before) / 1024)


def _status(key: str) -> int:
    """A figure of this process in kilobytes."""
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(key))


def _show(row: dict[str, Any]) -> None:
    n, c = row["shape"]
    verdict = "ok" if row["ratio"] <= row["bar"] else "ABOVE THE BAR"
    peak = f", peak +{row['peak_megabytes']:.0f} MB" if "peak_megabytes" in row else ""
    print(
        f"{row['loss']:14} {n:5} × {c:<6} {row['milliseconds']:9.3f} ms, "
        f"ratio {row['ratio']:5.2f} (bar {row['bar']:g}): {verdict}{peak}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", help="of the logits: float32, bfloat16, float16")
    parser.add_argument("--json", dest="json_file", help="write the figures to this file")
    parser.add_argument("--memory", action="store_true", help="also the peak memory on the CPU (Linux)")
    parser.add_argument("--peak", nargs=3, metavar=("LOSS", "N", "C"), help="print only that of one loss")
    arguments = vars(parser.parse_args())
    peak = arguments.pop("peak")
    if peak:
        _print_peak(peak[0], int(peak[1]), int(peak[2]), arguments["dtype"])
    else:
        main(**arguments)
