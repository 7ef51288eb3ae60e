"""What the engine costs over a bare hand-written loop: same network, data, loss, precision, in one run.

python -m benchmarks.engine                                  # CPU: tiny network
python -m benchmarks.engine --backbone resnet50 --size 448 --batch 64 --compile   # GPU
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from pluralis.data.augment import get_augment
from pluralis.data.loader import Loader, TensorImages
from pluralis.engine import fit
from pluralis.labels import Labels
from pluralis.losses import create_loss
from pluralis.method import LossMethod
from pluralis.models import create_model
from pluralis.runtime import Runtime, choose_device
from pluralis.stage import Stage

CLASSES = 20


def main(
    backbone: str = "tiny",
    size: int = 48,
    batch: int = 64,
    steps: int = 40,
    rounds: int = 5,
    compile: bool = False,
    augment: str = "none",
    device: str = "auto",
) -> dict[str, float | str]:
    where = choose_device(device)
    runtime = Runtime(where, compile=compile, autotune=True)
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (batch * steps, 3, size, size), dtype=torch.uint8, device=where)
    truth = torch.where(torch.rand(len(pixels), CLASSES) < 0.1, 1, 0)
    truth[:, 0] = 1
    labels = Labels.from_dense(truth, convention="zero-unknown")
    data = Loader(TensorImages(pixels), labels, size=size, cache="device", device=where)
    plan = Stage(epochs=1, batch_size=batch, lr=1e-5, schedule="constant", warmup=0, augment=augment)
    method = LossMethod(create_model(backbone, CLASSES), create_loss("an"))
    bare = _bare(backbone, data, pixels, labels, plan, runtime, steps)
    times: dict[str, list[float]] = {"engine": [], "bare": [], "ceiling": []}
    for number in range(rounds + 1):  # the first round warms up: kernels are chosen, graphs compiled
        for name, run in (
            ("engine", lambda: fit(method, data, plan, runtime=runtime) and None),
            ("bare", lambda: bare(True)),
            ("ceiling", lambda: bare(False)),
        ):
            seconds = _time(run, where)
            if number:
                times[name].append(seconds)
    speed = {name: batch * steps / statistics.median(values) for name, values in times.items()}
    result: dict[str, float | str] = {
        "network": f"{backbone} {size} px, batch {batch}{', compiled' if compile else ''}, augmentation {augment}",
        "device": torch.cuda.get_device_name() if where.type == "cuda" else "CPU",
        "engine img/s": round(speed["engine"], 1),
        "bare loop img/s": round(speed["bare"], 1),
        "compute only img/s": round(speed["ceiling"], 1),
        "engine time / bare loop time": round(speed["bare"] / speed["engine"], 3),
        "engine speed / compute only": round(speed["engine"] / speed["ceiling"], 3),
    }
    print(json.dumps(result))
    return result


def _bare(
    backbone: str, data: Loader, pixels: torch.Tensor, labels: Labels, plan: Stage, runtime: Runtime, steps: int
) -> Callable[[bool], None]:
    """The loop that one would write by hand; `whole` = with data and augmentation, else one batch again and again."""
    method = LossMethod(create_model(backbone, CLASSES), create_loss("an"))
    runtime.place(method)
    net = method.net
    targets = torch.from_numpy(labels.dense()).to(runtime.device).float()
    optimizer = torch.optim.Adam(net.parameters(), lr=plan.lr, fused=True)
    change = get_augment(plan.augment)

    def batches(whole: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if not whole:
            still = pixels[: plan.batch_size].float()
            for _ in range(steps):
                yield still, targets[: plan.batch_size]
            return
        for rows in torch.randperm(len(pixels)).to(runtime.device).split(plan.batch_size):
            draws = torch.rand(len(rows), 8, device=runtime.device)
            yield change(pixels[rows], draws, data.size), targets[rows]

    def run(whole: bool) -> None:
        net.train()
        for images, target in batches(whole):
            with runtime.autocast():
                logits = net(images)
            loss = F.binary_cross_entropy_with_logits(logits.float(), target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return run


def _time(run: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--augment", default="none")
    parser.add_argument("--device", default="auto")
    main(**vars(parser.parse_args()))
