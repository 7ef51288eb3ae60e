"""A training step of EfficientNet-Lite0 on a GPU: as PyTorch runs it, replayed, and replayed with fused batch norm.

Twice: with batch norms that learn their statistics, and with batch norms that keep them.

python -m benchmarks.replay --json docs/results/replay-gpu.json
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

from pluralis.models import create_model

KINDS = {"plain": (False, False), "replayed": (True, False), "replayed, fused norm": (True, True)}


def main(batches: list[int], size: int, steps: int, json_file: Path | None) -> None:
    rows = []
    for norms, batch in product(("learned", "kept"), batches):
        for kind, (record, fused) in KINDS.items():
            with patch("pluralis.models.fused_norm.has_triton", lambda fused=fused: fused):
                figures = _measure(batch, size, steps, record, norms == "kept")
            rows.append({"norms": norms, "batch": batch, "kind": kind, **figures})
            print(rows[-1], flush=True)
    if json_file:
        facts = {"torch": torch.__version__, "machine": torch.cuda.get_device_name(), "size": size, "rows": rows}
        json_file.write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _measure(batch: int, size: int, steps: int, record: bool, kept: bool) -> dict[str, float]:
    torch.manual_seed(0)
    net = create_model("efficientnet_lite0", 20, dropout=0.2).cuda().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    for module in net.modules():
        if kept and isinstance(module, nn.BatchNorm2d):
            module.eval()
    net.record(record)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)
    images = torch.randint(0, 256, (batch, 3, size, size), device="cuda").float()
    images = images.contiguous(memory_format=torch.channels_last)
    target = (torch.rand(batch, 20, device="cuda") < 0.1).float()

    def run(count: int) -> tuple[float, float]:
        """Seconds until the last step is started, and until it is done."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            with torch.autocast("cuda", torch.bfloat16):
                logits = net(images)
            optimizer.zero_grad(set_to_none=True)
            F.binary_cross_entropy_with_logits(logits.float(), target).backward()
            optimizer.step()
        started = time.perf_counter() - start
        torch.cuda.synchronize()
        return started, time.perf_counter() - start

    first = run(5)[1]
    started, done = run(steps)
    return {
        "step ms": round(1e3 * done / steps, 2),
        "started after ms": round(1e3 * started / steps, 2),
        "first five steps s": round(first, 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    main(**vars(parser.parse_args()))
