"""How many labels there are, from one positive label a row: estimates and intervals against the truth.

    python -m benchmarks.counting --data mulan --images VOCdevkit/VOC2012 --json docs/results/counting.json
    python -m benchmarks.counting --sets "digit scenes" --methods relabel --json docs/results/counting.json
    python -m benchmarks.counting --runs runs/relabel-0 runs/relabel-1 --json docs/results/counting_runs.json

What the file has of other sets and methods stays, so that some can be added to it or measured again.
Three kinds of sets. Mulan's tables, as in `benchmarks.mulan`: a seed draws a third of the rows to be held out, the
method learns from the others, and both parts are counted. VOC 2012 on frozen features, as in `benchmarks.frozen_voc`:
4,574 rows to learn from, 1,143 held out, and the trained and the 5,823 test rows are counted. Digit scenes, by the tiny
network and the settings of the demo: 1,600 to learn from, 320 held out, and the trained and 900 of other digits are
counted. A seed draws the label that each row keeps, and what is random in training; `count_labels` calibrates on the
held-out rows. A row that keeps no label has none ("absent"). Seeds 1 to 3 of the tables were looked at when the
likelihood of the calibration was chosen, so they are not among those that are reported.

--runs counts what finished runs of `pluralis train` learned, by one view: runs of fully labelled data from which a
protocol hid labels, with held-out rows and a test set. Runs that differ by seed and draw alone are one entry.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import frozen_voc, mulan
from benchmarks.voc_features import Part, read_voc
from pluralis.bench.identity import decides
from pluralis.counting import count_labels
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.protocols import single_positive, split
from pluralis.data.scenes import make_scenes
from pluralis.data.source import load_split
from pluralis.defaults import settle
from pluralis.demo import SIZE, DemoSize, demo_recipe, pretrain
from pluralis.engine import fit
from pluralis.estimator import PartialLabelClassifier
from pluralis.evaluate import predict
from pluralis.labels import Labels
from pluralis.method import Setup
from pluralis.methods import create_method, start_heads
from pluralis.models import create_model
from pluralis.trained_run import TrainedRun, load_run

SETS = (*mulan.SETS, "VOC 2012", "digit scenes")
METHODS = ("an", "gr", "em", "selection")  # of every set
NETWORKS = (*METHODS, "relabel")  # of the digit scenes: it works on a network
FIRST_SEED = 6
_KEYS = ("set", "method", "rows")

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # logits, written labels, truth, each [N, C]
Fit = Callable[[str, int], dict[str, Rows]]  # of a method and a seed: rows "trained", "held out", "unseen"


def main(
    data: Path | None = None,
    images: str = "",
    cache: Path | None = None,
    seeds: int = 5,
    json_file: Path | None = None,
    sets: Sequence[str] = SETS,
    methods: Sequence[str] = NETWORKS,
    runs: Sequence[Path] = (),
) -> None:
    """Print a Markdown table, and write one entry for each set, method and part of the rows."""
    if runs:
        count_runs(runs, json_file)
        return
    torch.set_num_threads(1)
    facts: dict[str, Any] = {"first seed": FIRST_SEED, "seeds": seeds, "torch": torch.__version__}
    facts |= {"machine": platform.processor() or platform.machine(), "threads": 1, "settings": {}}
    found = _kept(json_file, facts)
    print("| set | method | rows | labels a row | truth | covered | error by class | classes covered |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name, settings, learn in problems(data, images, cache, sets):
        facts["settings"][name] = settings
        for method in NETWORKS if name == "digit scenes" else METHODS:
            if method not in methods:
                continue
            runs = [measure(learn(method, seed), seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
            for part in ("trained", "unseen"):
                entry = {"set": name, "method": method, "rows": part, "runs": [run[part] for run in runs]}
                found = [other for other in found if any(other[key] != entry[key] for key in _KEYS)] + [entry]
                print(_line(entry), flush=True)
            if json_file is not None:  # after each method: what is measured is kept if the rest is broken off
                write_counts(json_file, facts, found)


def _kept(json_file: Path | None, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a file that is there; it must be of the same seeds, and its settings come along."""
    if json_file is None or not json_file.exists():
        return []
    before = json.loads(json_file.read_text())
    for key in ("first seed", "seeds"):
        if before[key] != facts[key]:
            raise SystemExit(f"{json_file} has {key} {before[key]}, this run {facts[key]}: name another --json")
    facts["settings"] |= before["settings"]
    entries: list[dict[str, Any]] = before["entries"]
    return entries


def problems(
    data: Path | None, images: str, cache: Path | None, sets: Sequence[str] = SETS
) -> Iterator[tuple[str, dict[str, Any], Fit]]:
    for name in mulan.SETS:
        if name in sets:
            if data is None:
                raise SystemExit(f"--data is missing: the folder of the files of {name}")
            yield name, mulan.SETTINGS, partial(fit_table, mulan.read_set(data, name))
    if "VOC 2012" in sets:
        if not images:
            raise SystemExit("--images is missing: the VOC2012 folder")
        yield "VOC 2012", frozen_voc.SETTINGS, partial(fit_voc, *read_voc(images, cache))
    if "digit scenes" not in sets:
        return
    size = DemoSize()
    with tempfile.TemporaryDirectory() as folder:
        weights = pretrain(Path(folder), size)
        yield "digit scenes", vars(demo_recipe("an", 0, weights, size).train), partial(fit_scenes, weights, size)


def fit_table(table: Part, method: str, seed: int) -> dict[str, Rows]:
    features, truth = table
    trained, unseen = split(len(truth), 1 / 3, seed)
    given = single_positive(truth, seed).dense()
    model = PartialLabelClassifier(method, random_state=seed, **mulan.SETTINGS).fit(features[trained], given[trained])
    everything = model.decision_function(features), given, truth.dense()
    parts = {"trained": trained, "held out": unseen, "unseen": unseen}
    return {part: _select(everything, rows) for part, rows in parts.items()}


def fit_voc(train: Part, test: Part, method: str, seed: int) -> dict[str, Rows]:
    trained, held = split(len(train[1]), 0.2, 1200)
    given, test_given = (single_positive(labels, seed).dense() for _, labels in (train, test))
    model = PartialLabelClassifier(method, random_state=seed, **frozen_voc.SETTINGS)
    model.fit(train[0][trained], given[trained])
    everything = model.decision_function(train[0]), given, train[1].dense()
    unseen = model.decision_function(test[0]), test_given, test[1].dense()
    return {"trained": _select(everything, trained), "held out": _select(everything, held), "unseen": unseen}


def fit_scenes(weights: Path, size: DemoSize, name: str, seed: int) -> dict[str, Rows]:
    made = {part: make_scenes(part, count, size=SIZE) for part, count in (("train", size.train), ("test", size.test))}
    truth = {part: Labels.from_dense(scenes.truth, scenes.classes) for part, scenes in made.items()}
    given = {part: single_positive(labels, seed) for part, labels in truth.items()}
    recipe, _ = settle(demo_recipe(name, seed, weights, size), TensorImages(made["train"].images))
    trained, held = split(size.train, recipe.select.fraction, seed)

    def loader(part: str, rows: np.ndarray) -> Loader:
        return Loader(TensorImages(made[part].images[rows]), given[part].select(rows), size=SIZE)

    data = loader("train", trained)
    torch.manual_seed(seed)
    classes = len(data.labels.classes)
    make_net = partial(create_model, "tiny", classes, recipe.model.head, weights=str(weights))
    method = create_method(name, Setup(make_net, classes, data.labels), recipe.method.params)
    start_heads(method, data.labels, recipe.method.start_bias)
    fit(method, data, recipe.train, seed=seed)

    def part(which: str, rows: np.ndarray) -> Rows:
        return predict(method, loader(which, rows)).numpy(), given[which].dense(rows), truth[which].dense(rows)

    unseen = part("test", np.arange(size.test))
    return {"trained": part("train", trained), "held out": part("train", held), "unseen": unseen}


def count_runs(folders: Sequence[Path], json_file: Path | None) -> None:
    counted: dict[tuple[Any, ...], dict[str, Any]] = {}
    for folder in folders:
        run = load_run(folder)
        data, model = run.recipe.data, run.recipe.model
        if data.protocol != "single-positive":
            raise SystemExit(f"--runs: {folder} has the protocol {data.protocol}; one picked label is counted here")
        alone = replace(run.recipe, data=replace(data, protocol_seed=None), run=replace(run.recipe.run, seed=0))
        rows = _rows_of(run)
        name = f"{data.format}, {data.protocol}, {len(rows['trained'][0])} images, {data.size} px"
        method = f"{run.recipe.method.name}, {model.head}, freeze_bn {run.recipe.train.freeze_bn}"
        if (students := run.recipe.method.params.get("students", 1)) > 1:
            method += f", {students} students"
        method += ", held-out images" * bool(run.recipe.select.images)
        values = json.dumps(decides(alone), sort_keys=True)  # words do not tell all recipes apart
        recipe = hashlib.sha256(values.encode()).hexdigest()[:16]
        for part, figures in measure(rows, run.recipe.run.seed).items():
            entry = {"set": name, "method": method, "rows": part, "recipe": recipe, "runs": []}
            entry = counted.setdefault(_key(entry), entry)
            entry["runs"].append({**figures, "draw": data.protocol_seed})
    for entry in counted.values():
        print(_line(entry))
    if json_file is not None:
        before = json.loads(json_file.read_text()) if json_file.exists() else {"entries": []}
        if "seeds" in before:
            raise SystemExit(f"{json_file} holds what was counted without --runs: name another --json")
        again = {_key(entry)[:-1] for entry in counted.values()}
        kept = [entry for entry in before["entries"] if "recipe" in entry or _key(entry)[:-1] not in again]
        entries = {_key(entry): entry for entry in (*kept, *counted.values())}
        write_counts(json_file, {}, list(entries.values()))


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return *(entry[key] for key in _KEYS), entry.get("recipe")


def write_counts(file: Path, facts: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    """Each run in a line of its own."""
    lines = [json.dumps(facts, allow_nan=False)[:-1] + (", " if facts else "") + '"entries": [']
    for entry in entries:
        runs = ",\n".join(json.dumps(run, allow_nan=False) for run in entry["runs"])
        rest = json.dumps({key: value for key, value in entry.items() if key != "runs"}, allow_nan=False)
        lines.append(f'{rest[:-1]}, "runs": [\n{runs}]}}' + "," * (entry is not entries[-1]))
    file.write_text("\n".join([*lines, "]}"]) + "\n")


def _rows_of(run: TrainedRun) -> dict[str, Rows]:
    split = load_split(run.recipe.data, run.recipe.select)
    if split.truth is None or split.held is None or split.held_labels is None or split.test is None:
        raise SystemExit("--runs: the run must have hidden labels, held-out rows and a test set")
    test = split.test.labels
    labels = {
        "trained": (split.train, split.train.labels, split.truth),
        "held out": (split.held, *split.held_labels),
        "unseen": (split.test, single_positive(test, run.recipe.run.seed), test),
    }
    return {
        part: (run.logits(source).numpy(), given.dense(), truth.dense())
        for part, (source, given, truth) in labels.items()
    }


def measure(parts: dict[str, Rows], seed: int) -> dict[str, dict[str, Any]]:
    """The counts of the rows that a method was trained on and of those that it was not."""
    results = {}
    for part in ("trained", "unseen"):
        (logits, given, truth), held = parts[part], parts["held out"][:2]
        start = time.perf_counter()
        counts = count_labels(logits, given, held, unlabelled="absent", seed=seed)
        right = (truth > 0).sum(0)
        errors = [abs(count.expected - n) for count, n in zip(counts.classes, right, strict=True)]
        inside = [count.low <= n <= count.high for count, n in zip(counts.classes, right, strict=True)]
        each = [[round(value, 1) for value in (count.expected, count.low, count.high)] for count in counts.classes]
        results[part] = {
            "seed": seed,
            "labels a row": [round(value, 4) for value in counts.per_image],
            "truth": round(float(right.sum() / len(truth)), 4),
            "covered": bool(counts.total.low <= right.sum() <= counts.total.high),
            "error by class": round(float(sum(errors) / right.sum()), 4),
            "classes covered": round(float(np.mean(inside)), 4),
            "by class": [[*count, int(n)] for count, n in zip(each, right, strict=True)],  # expected, low, high, truth
            "calibration": [round(counts.calibration.a, 4), round(counts.calibration.b, 4)],
            "seconds": round(time.perf_counter() - start, 2),
        }
    return results


def _select(parts: Rows, rows: np.ndarray) -> Rows:
    logits, given, truth = (part[rows] for part in parts)
    return logits, given, truth


def _line(entry: dict[str, Any]) -> str:
    runs = entry["runs"]
    low, high = (statistics.mean(run["labels a row"][end] for run in runs) for end in (1, 2))
    values = [run["labels a row"][0] for run in runs]
    mean = {key: statistics.mean(run[key] for run in runs) for key in ("truth", "error by class", "classes covered")}
    estimate = f"{statistics.mean(values):.2f} ({low:.2f} to {high:.2f})"
    covered = f"{sum(run['covered'] for run in runs)} of {len(runs)}"
    return (
        f"| {entry['set']} | `{entry['method']}` | {entry['rows']} | {estimate} | {mean['truth']:.2f} | {covered} |"
        f" {mean['error by class']:.0%} | {mean['classes covered']:.0%} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=None, help="folder of the ARFF and XML files")
    parser.add_argument("--images", default="", help="the VOC2012 folder")
    parser.add_argument("--cache", type=Path, default=None, help="folder of VOC's features")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--methods", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--runs", type=Path, nargs="+", default=(), help="folders of finished runs, counted instead")
    main(**vars(parser.parse_args()))
