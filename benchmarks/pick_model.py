"""Annotators who pick large objects, and a likelihood that knows it; VOC 2012, frozen maps, head `lse`.

    python -m benchmarks.pick_model --images VOCdevkit/VOC2012 --json docs/results/pick_model.json

`selection` says that any present label is picked with the same chance. Here a present label c is picked in proportion
to A_c^e, where A_c is the share of the picture that its class map covers, the mean of σ(M_c) over the places, taken as
given (no gradient flows into it) and never below 1 %; e = 0 is `selection`. With v_j = (A_j / A_c)^e the chance of the
written label c, summed over all sets of present labels, is

    p_c · ∫₀¹ Π_{j≠c} (1 − p_j + p_j s^{v_j}) ds.

Each exponent meets labels that were picked at random, by the area of the boxes, and always as the largest object.
Beside test mAP: labels expected in a test image, and −log likelihood of the held-out rows' own picks, by which somebody
without clean labels would have to choose the exponent. Training rows, draws, epochs and rate are those of
`benchmarks.label_loss`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.frozen_voc import SETTINGS
from benchmarks.paired import gain, summary, text
from pluralis.config import DataPart
from pluralis.data.decoded import FromFiles
from pluralis.data.protocols import pick, pick_largest, single_positive, split
from pluralis.data.source import load_areas, load_source
from pluralis.labels import Labels
from pluralis.methods.start import start_values
from pluralis.metrics import mean_average_precision
from pluralis.models import create_model
from pluralis.models.map_pooling import LogMeanExpHead

EXPONENTS = (0.0, 0.5, 1.0, 2.0)
SIZE, BATCH, FIRST_DRAW = 256, 32, 1200
PICKS: dict[str, Callable[[Labels, np.ndarray, int], Labels]] = {
    "at random": lambda labels, areas, draw: single_positive(labels, draw),
    "by area": lambda labels, areas, draw: pick(labels, areas, draw),
    "the largest": lambda labels, areas, draw: pick_largest(labels, areas),
}
_NODES, _WEIGHTS = (torch.from_numpy(rule) / 2 for rule in np.polynomial.legendre.leggauss(48))


class Data(NamedTuple):
    maps: Tensor  # float16 [N, D, h, w] of all training images
    labels: Labels  # complete
    areas: np.ndarray
    test: Tensor
    truth: Tensor


def likelihood(logits: Tensor, area: Tensor, picked: Tensor, exponent: float) -> Tensor:
    """[B] −log of the chance that of the present labels `picked` [B] was written; logits and area [B, C].

    >>> chance = likelihood(torch.zeros(1, 2), torch.tensor([[0.3, 0.1]]), torch.tensor([0]), 1.0).neg().exp()
    >>> round(chance.item(), 4)  # alone 1/4, with the other one 1/4 · 3/4
    0.4375
    """
    present = logits.sigmoid()
    given = picked[:, None]
    power = (area / area.gather(1, given)) ** exponent  # [B, C]
    s, weights = (_NODES + 0.5).to(logits), _WEIGHTS.to(logits)
    factors = (1 - present[:, None] * (1 - s[:, None] ** power[:, None])).clamp(min=1e-12)  # [B, nodes, C]
    others = torch.ones_like(present).scatter(1, given, 0.0)
    inside = (factors.log() * others[:, None]).sum(2)
    return -(F.logsigmoid(logits.gather(1, given)[:, 0]) + (inside.exp() * weights).sum(1).log())


def pooled(head: LogMeanExpHead, maps: Tensor) -> Tensor:
    """[B, C] log-mean-exp of maps [B, C, h, w]."""
    places = maps.flatten(2)
    return (torch.logsumexp(head.r * places, 2) - math.log(places.shape[2])) / head.r


def covered(maps: Tensor) -> Tensor:
    """[B, C] the share of the picture that each class covers."""
    return maps.detach().sigmoid().mean((2, 3)).clamp(min=0.01)


def train(data: Data, rows: np.ndarray, given: Labels, exponent: float, seed: int) -> LogMeanExpHead:
    torch.manual_seed(seed)
    head = LogMeanExpHead(data.maps.shape[1], len(given.classes))
    head.set_bias(start_values(given.select(rows), "log-odds"))
    picked = torch.from_numpy(given.dense(rows)).argmax(1)
    steps = SETTINGS["epochs"] * -(-len(rows) // BATCH)
    optimizer = torch.optim.Adam(head.parameters(), SETTINGS["lr"], weight_decay=SETTINGS["weight_decay"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(SETTINGS["epochs"]):
        for part in torch.randperm(len(rows)).split(BATCH):
            maps = head.maps(data.maps[torch.from_numpy(rows)[part]].float())
            loss = likelihood(pooled(head, maps), covered(maps), picked[part], exponent).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return head


@torch.no_grad()
def scores(head: LogMeanExpHead, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and areas [N, C]."""
    found = [head.maps(part.float()) for part in maps.split(256)]
    return torch.cat([pooled(head, part) for part in found]), torch.cat([covered(part) for part in found])


def main(images: str, cache: Path, runs: int, json_file: Path | None) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    data = read(images, cache)
    rows, held_out = split(len(data.labels), 0.2, 1200)
    facts = {"settings": SETTINGS, "runs": runs, "train": len(rows), "held out": len(held_out), "test": len(data.test)}
    facts |= {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    facts["labels in a test image"] = round(float((data.truth > 0).sum(1).float().mean()), 3)
    table: list[dict[str, Any]] = []
    print("| picked | exponent | mAP | over exponent 0 | labels in an image | −log likelihood, held out |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, hide in PICKS.items():
        plain: list[float] = []
        for exponent in EXPONENTS:
            mean_ap, expected, surprise = [], [], []
            for run in range(runs):
                given = hide(data.labels, data.areas, FIRST_DRAW + run)
                head = train(data, rows, given, exponent, run)
                logits, _ = scores(head, data.test)
                mean_ap.append(100 * mean_average_precision(logits, data.truth).value)
                expected.append(float(logits.sigmoid().sum(1).mean()))
                held = scores(head, data.maps[torch.from_numpy(held_out)])
                picked = torch.from_numpy(given.dense(held_out)).argmax(1)
                surprise.append(float(likelihood(*held, picked, exponent).mean()))
            plain = plain or mean_ap
            row = {"picked": name, "exponent": exponent, "mAP": summary(mean_ap), "gain": gain(mean_ap, plain)}
            row |= {"expected": round(statistics.mean(expected), 3), "surprise": round(statistics.mean(surprise), 4)}
            row["runs"] = [round(value, 2) for value in mean_ap]
            table.append(row)
            cells = [name, f"{exponent:g}", text(row["mAP"]), text(row["gain"], "+")]
            print(f"| {' | '.join(cells)} | {row['expected']:.2f} | {row['surprise']:.4f} |", flush=True)
            if json_file is not None:
                json_file.write_text(json.dumps({**facts, "rows": table}, indent=1, allow_nan=False) + "\n")
    return table


def read(images: str, cache: Path) -> Data:
    def part(name: str) -> tuple[Tensor, Labels]:
        source = load_source(DataPart("voc", images, options={"split": name, "difficult": "absent"}))
        assert isinstance(source.images, FromFiles)
        return _maps(source.images, cache / f"maps-{name}-{SIZE}.npy"), source.labels

    (maps, labels), (test, truth) = part("train"), part("val")
    areas = load_areas(DataPart("voc", images), labels)
    return Data(maps, labels, areas, test, torch.from_numpy(truth.dense()))


@torch.no_grad()
def _maps(images: FromFiles, path: Path) -> Tensor:
    """Of the frozen network, from the file where they are there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        net = create_model("efficientnet_lite0", 20, weights="imagenet").eval()
        found = []
        for rows in torch.arange(len(images)).split(BATCH):
            squares = torch.stack([images.decode(int(row), SIZE) for row in rows])
            found.append(net.features(squares).half().numpy())
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, np.concatenate(found))
        temporary.replace(path)
    return torch.from_numpy(np.load(path, mmap_mode="r+"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", required=True, help="the VOC2012 folder")
    parser.add_argument("--cache", type=Path, default=Path("runs/pick_model"), help="folder of the maps, 1.9 GB")
    parser.add_argument("--runs", type=int, default=3, help="pairs of a seed and a draw of the labels")
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    main(**vars(parser.parse_args()))
