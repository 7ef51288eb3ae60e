"""Ways in which labels are lost, on VOC 2012's frozen features: what each of them costs each method.

    python -m benchmarks.label_loss --images VOCdevkit/VOC2012 --json docs/results/label_loss.json

With --only or --methods, which leave some out, what the file has of the others stays.
Features, training and test rows, linear head and settings are those of `benchmarks.frozen_voc`, the same for every
method; methods have their defaults except where the table names a parameter. A run is a pair of a seed and, where the
labels are lost at random, a draw of its own; differences are taken run by run, so that what both sides share falls out.
The reference with all labels is trained once, before the tables, and has no seconds of its own in them.

pick-…      one present label an image is written: any of them (`single-positive`), one in proportion to the area of its
            boxes, the largest, the one of the rarest class
left-75 …   each present label is written with that chance and no absent one; an image may be left without any
known-10 …  each label, present or absent, is known with that chance

Where labels are known whatever they are, that one is unknown says nothing of it: the likelihood of what is known is
the masked cross-entropy, which `selection` is with `rate = 0`, but for a factor. Its other rates and the pick take
silence for evidence against a label; they are in the table to show what that costs.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.frozen_voc import ALL, BASE, SETTINGS
from benchmarks.paired import gain, summary, text
from benchmarks.voc_features import read_voc
from pluralis.config import DataPart
from pluralis.data.protocols import drop_positives, known_ratio, pick, pick_largest, pick_rarest, single_positive, split
from pluralis.data.source import load_areas
from pluralis.estimator import PartialLabelClassifier
from pluralis.labels import Labels
from pluralis.metrics import mean_average_precision

FIRST_DRAW = 1200  # the published one of single positives
RANDOM_PICK = "single-positive"
Entry = tuple[str, dict[str, Any]]
"""A method and its parameters."""


class Loss(NamedTuple):
    """One way of losing labels: (complete labels, areas of boxes, seed of the draw) -> what is left."""

    name: str
    hide: Callable[[Labels, np.ndarray, int], Labels]
    entries: list[Entry]


class Data(NamedTuple):
    train: np.ndarray  # features [N, D]
    rows: np.ndarray  # those of all labels that are trained on
    labels: Labels  # complete
    areas: np.ndarray
    test: np.ndarray
    truth: torch.Tensor  # [M, C]


def losses() -> list[Loss]:
    names = (BASE, "wan", "ll-ct", "role", "gr", "em", "em-apl", "pu-mlc", "cls")
    common: list[Entry] = [(name, {}) for name in names]
    picked: list[Entry] = [*common, ("selection", {})]
    found = [
        Loss(RANDOM_PICK, lambda labels, areas, draw: single_positive(labels, draw), picked),
        Loss("pick-area", lambda labels, areas, draw: pick(labels, areas, draw), picked),
        Loss("pick-largest", lambda labels, areas, draw: pick_largest(labels, areas), picked),
        Loss("pick-rarest", lambda labels, areas, draw: pick_rarest(labels), picked),
    ]
    for share in (0.75, 0.5, 0.25):
        entries = [*common]
        for unlabelled in ("skip", "absent"):
            means = {"unlabelled": unlabelled}
            rates = [{"mechanism": "rate", **rate} for rate in ({"rate": share}, {})]
            entries += [("selection", {**kind, **means}) for kind in ({}, *rates)]
        found.append(Loss(f"left-{100 * share:.0f}", _left(share), entries))
    for share in (0.1, 0.5, 0.9):
        rates = [{"mechanism": "rate", **rate} for rate in ({"rate": 0.0}, {"rate": share}, {})]
        entries = [*common, ("pu-mlc", {"absent": "cross-entropy"}), ("bce", {}), ("partial-bce", {})]
        entries += [("selection", kind) for kind in ({}, *rates)]
        entries += [("pu-mlc", {"gamma": gamma}) for gamma in (0.01, 0.05, 0.15, 0.3)]
        found.append(Loss(f"known-{100 * share:.0f}", _known(share), entries))
    return found


def main(
    images: str, cache: Path | None, runs: int, only: list[str], methods: list[str], json_file: Path | None
) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    data = read_data(images, cache)
    facts = {"settings": SETTINGS, "runs": runs, "first draw": FIRST_DRAW, "train": len(data.rows)}
    facts |= {"test": len(data.truth), "torch": torch.__version__, "threads": 1}
    facts["machine"] = platform.processor() or platform.machine()
    complete = data.labels.dense(data.rows)
    full = [measure(data, complete, ("bce", {}), run) for run in range(runs)]
    measured: list[dict[str, Any]] = []
    kept = _kept(json_file, facts) if only or methods else []
    random = {row["method"]: row["runs"] for row in kept if row["labels"] == RANDOM_PICK}
    for loss in losses():
        if only and loss.name not in only:
            continue
        given = [loss.hide(data.labels, data.areas, FIRST_DRAW + run).dense(data.rows) for run in range(runs)]
        empty = summary([100 * float((labels <= 0).all(1).mean()) for labels in given])["mean"]
        print(f"\n**{loss.name}** ({empty:.1f} % of the images have no written label)\n")
        print(f"| method | mAP | over {BASE} | against {RANDOM_PICK} | seconds |\n|---|---|---|---|---|")
        base: list[float] = []
        for entry in _in_order(loss):
            if methods and entry[0] not in (BASE, *methods):
                continue
            start = time.perf_counter()
            scores = full if entry[0] == ALL else [measure(data, given[run], entry, run) for run in range(runs)]
            base = base or scores
            name = title(entry)
            row: dict[str, Any] = {"labels": loss.name, "method": name}
            row |= {"mAP": summary(scores), f"over {BASE}": gain(scores, base)}
            if loss.name == RANDOM_PICK:
                random[name] = scores
            elif loss.name.startswith("pick") and name in random:
                row[f"against {RANDOM_PICK}"] = gain(scores, random[name])
            row |= {"seconds": round((time.perf_counter() - start) / runs, 1), "runs": [round(s, 2) for s in scores]}
            measured.append(row)
            print(line(row), flush=True)
            if json_file is not None:  # after each method: what is measured is kept if the rest is broken off
                rows = {"rows": joined(kept, measured)}
                json_file.write_text(json.dumps({**facts, **rows}, indent=1, allow_nan=False) + "\n")
    return measured


def _in_order(loss: Loss) -> list[Entry]:
    return [loss.entries[0], (ALL, {}), *loss.entries[1:]]


def _kept(json_file: Path | None, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file that is there, which must be of the same settings."""
    if json_file is None or not json_file.exists():
        return []
    before = json.loads(json_file.read_text())
    for key in ("settings", "runs", "first draw", "train", "test"):
        if before[key] != facts[key]:
            raise SystemExit(f"{json_file} has {key} {before[key]}, this run {facts[key]}: name another --json")
    rows: list[dict[str, Any]] = before["rows"]
    return rows


def joined(kept: list[dict[str, Any]], measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows in the order of the tables, those that were measured again in their new form."""
    found = {(row["labels"], row["method"]): row for row in (*kept, *measured)}
    known = [(loss.name, title(entry)) for loss in losses() for entry in _in_order(loss)]
    order = [*dict.fromkeys([*(key for key in known if key in found), *found])]
    return [found[key] for key in order]


def read_data(images: str, cache: Path | None) -> Data:
    (features, labels), (unseen, truth) = read_voc(images, cache)
    rows, _ = split(len(labels), 0.2, 1200)
    areas = load_areas(DataPart("voc", images), labels)
    return Data(features[rows], rows, labels, areas, unseen, torch.from_numpy(truth.dense()))


def measure(data: Data, given: np.ndarray, entry: Entry, seed: int) -> float:
    """Test mAP of one run."""
    model = PartialLabelClassifier(entry[0], method_params=entry[1], random_state=seed, **SETTINGS)
    odds = torch.from_numpy(model.fit(data.train, given).decision_function(data.test))
    return 100 * mean_average_precision(odds, data.truth).value


def title(entry: Entry) -> str:
    """The method and what was set of it.

    >>> title(("selection", {"mechanism": "rate", "rate": 0.5, "unlabelled": "skip"})), title(("em", {}))
    ('selection, mechanism rate, rate 0.5, unlabelled skip', 'em')
    """
    return ", ".join([entry[0], *(f"{name} {value}" for name, value in entry[1].items())])


def line(row: dict[str, Any]) -> str:
    lost = row.get(f"against {RANDOM_PICK}")
    cells = [row["method"], text(row["mAP"]), text(row[f"over {BASE}"], "+"), text(lost, "+") if lost else ""]
    return f"| {' | '.join(cells)} | {row['seconds']} |"


def _left(share: float) -> Callable[[Labels, np.ndarray, int], Labels]:
    return lambda labels, areas, draw: drop_positives(labels, 1 - share, draw)


def _known(share: float) -> Callable[[Labels, np.ndarray, int], Labels]:
    return lambda labels, areas, draw: known_ratio(labels, share, draw)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", required=True, help="the VOC2012 folder")
    parser.add_argument("--cache", type=Path, default=None, help="folder of the features")
    parser.add_argument("--runs", type=int, default=3, help="pairs of a seed and a draw of the labels")
    parser.add_argument("--only", nargs="*", default=[], help="ways of losing labels, by name; default: all")
    parser.add_argument("--methods", nargs="*", default=[], help=f"and {BASE}; default: all")
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    main(**vars(parser.parse_args()))
