"""What choosing labels costs CLS: its share of a training step, and the step against one that assumes negative.

python -m benchmarks.selection_cost                                                       # two CPU cores
python -m benchmarks.selection_cost --device cuda --backbone resnet50 --size 448 --batch 64
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable

import torch

from benchmarks.engine import _time
from pluralis.losses.functional import an
from pluralis.method import Batch, Clock, Setup
from pluralis.methods.cls import CLS, select
from pluralis.models import create_model
from pluralis.runtime import Runtime, choose_device

BAR = 0.02
LATE = Clock(epoch=10, epochs=20)  # after the ramp, so that labels are removed


def main(
    backbone: str = "resnet18",
    size: int = 128,
    batch: int = 32,
    classes: int = 80,
    rounds: int = 7,
    device: str = "auto",
) -> dict[str, float | str]:
    where = choose_device(device)
    runtime = Runtime(where)
    torch.manual_seed(0)
    method = CLS(Setup(lambda: create_model(backbone, classes), classes), tau_h=0.012, tau_l=0.06)
    runtime.place(method)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-5, fused=True)
    labels = torch.zeros(batch, classes, dtype=torch.int8)
    labels[torch.arange(batch), torch.randint(classes, (batch,))] = 1
    labels = labels.to(where)
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=where)
    item = Batch((images,), labels, torch.arange(batch, device=where))
    f, g = torch.randn(2, batch, classes, device=where)
    rates = method.rates(LATE.epoch)

    def step(terms: Callable[[], dict[str, torch.Tensor]]) -> None:
        with runtime.autocast():
            loss = torch.stack(list(terms().values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def assume_negative() -> dict[str, torch.Tensor]:
        return {str(i): an(z, labels) for i, z in enumerate(method.logits(item))}

    def selection() -> None:
        both = torch.stack([f, g])
        select(both, both.flip(0), labels, *rates)

    calls: dict[str, Callable[[], None]] = {
        "CLS": lambda: step(lambda: method(item, LATE)),
        "assume negative": lambda: step(assume_negative),
        "selection": selection,
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):  # the first rounds warm up
        for name, call in calls.items():
            spent = _time(call, where)
            if number > 1:
                seconds[name].append(spent)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    extra = statistics.median(c - a for c, a in zip(seconds["CLS"], seconds["assume negative"], strict=True))
    # A GPU is still busy with the networks while the selection is started, so alone it takes longer than it costs.
    part = (extra if where.type == "cuda" else middle["selection"]) / middle["CLS"]
    result: dict[str, float | str] = {
        "network": f"2 × {backbone} {size} px, batch {batch}, {classes} classes",
        "device": torch.cuda.get_device_name() if where.type == "cuda" else "CPU",
        "CLS step ms": round(1e3 * middle["CLS"], 2),
        "two assume-negative networks, step ms": round(1e3 * middle["assume negative"], 2),
        "selection alone ms": round(1e3 * middle["selection"], 3),
        "added to the step ms": round(1e3 * extra, 3),
        "share of the CLS step": round(part, 5),
        "bar": BAR,
        "verdict": "ok" if part <= BAR else "ABOVE THE BAR",
    }
    print(json.dumps(result, ensure_ascii=False))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="auto")
    main(**vars(parser.parse_args()))
