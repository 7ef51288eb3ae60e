"""Which rule finds good settings without clean labels, and which calibration makes good probabilities.

    python -m benchmarks.selection_rules --images VOCdevkit/VOC2012 --data mulan --json selection_rules.json
    python -m benchmarks.selection_rules --runs docs/results/papers/results

Every method is trained with twelve settings (learning rate × epochs × weight decay) from one positive label a row, on
frozen features of VOC 2012 (published rows and labels) and on two of Mulan's tables. Rules see held-out rows only, with
one positive label each: 1,143 of VOC, a fifth of a table. They are compared with the mAP on the complete labels of the
test rows, by rank correlation and by regret: what the best of the settings has more than the one that the rule picks.

Rules, on the logits of held-out rows: the likelihood of the written labels after a calibration by two numbers, as it is
and given that something is present, and without a calibration; that of a softmax; the mean reciprocal rank of the
written label; mAP and the area under the ROC curve where all that is not written is taken as absent; and mAP on their
complete labels, which nobody has. Further draws of the held-out rows' labels say how
much of it is luck. Calibrations are measured on the test rows at each method's plain settings.

--runs takes the stored results of a bench instead, those whose epochs the rules saw (`papers/published-or-fair.toml`):
fine-tuned networks, each draw of the labels by itself, its last epochs and all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks import frozen_voc, mulan
from benchmarks.voc_features import read_voc
from pluralis.calibration import Calibration
from pluralis.conditional_calibration import given_something, most_likely
from pluralis.data.protocols import single_positive, split
from pluralis.estimator import PartialLabelClassifier
from pluralis.labels import Labels
from pluralis.losses.selection import selection_nll
from pluralis.metrics import f1_scores, mean_average_precision

METHODS = ("an", "wan", "an-ls", "focal", "hill", "em", "em-apl", "gr", "ll-r", "ll-ct", "role")
METHODS += ("upu", "nnpu", "pu-mlc", "cls", "selection", "relabel")
CALIBRATED = ("an", "em", "em-apl", "gr", "pu-mlc", "selection")
RATES, LENGTHS, DECAYS = (0.3, 1.0, 3.0), (1 / 3, 1.0), (1.0, 100.0)  # times those of the plain settings
TABLES = ("yeast", "scene")
FIRST_SEED = 11  # of the tables: no other benchmark has looked at these
BINS = 15


@dataclass(frozen=True)
class Task:
    """Rows with one label each to learn from, rows with one label to choose by (in several draws), rows to test on."""

    name: str
    plain: dict[str, Any]  # settings
    seed: int
    train: tuple[np.ndarray, np.ndarray]
    held: tuple[np.ndarray, Tensor]  # features, complete labels
    draws: list[Tensor]
    test: tuple[np.ndarray, Tensor]


def main(
    images: str, cache: Path | None, data: Path, seeds: int, draws: int, json_file: Path | None, runs: Path | None
) -> None:
    if runs is not None:
        for name, found in compare_stored(runs).items():
            show({"task": f"{name} of each draw", **found})
        return
    if not images:
        raise SystemExit("--images is missing: the VOC2012 folder")
    torch.set_num_threads(1)
    facts: dict[str, Any] = {"methods": list(METHODS), "held-out draws": draws, "torch": torch.__version__}
    facts |= {"machine": platform.processor() or platform.machine(), "threads": 1}
    results: list[dict[str, Any]] = []
    if json_file is not None and json_file.exists():
        kept = json.loads(json_file.read_text())
        if {key: kept.get(key) for key in facts} != facts:
            raise SystemExit(f"{json_file} holds other measurements: move it away, or name another file with --json")
        results = kept["tasks"]
    for task in tasks(images, cache, data, seeds, draws):
        entry = next((entry for entry in results if entry["task"] == task.name), None)
        if entry is None:
            start = time.perf_counter()
            runs = [measure(task, method, change) for method in METHODS for change in changes()]
            entry = {"task": task.name, "plain settings": task.plain, "rows": _sizes(task), "rules": compare(runs)}
            entry |= {"seconds": round(time.perf_counter() - start), "runs": runs}
            results.append(entry)
        show(entry)
        if json_file is not None:  # after each task: what is measured is not measured again
            json_file.write_text(json.dumps({**facts, "tasks": results}, allow_nan=False) + "\n")


def tasks(images: str, cache: Path | None, data: Path, seeds: int, draws: int) -> Iterator[Task]:
    """VOC, then the tables with their seeds. The first draw of VOC's held-out labels is the published one."""
    (features, labels), (test, truth) = read_voc(images, cache)
    train, held = split(len(labels), 0.2, 1200)
    shown = [single_positive(labels, 1200 + i) for i in range(draws)]
    yield Task(
        "VOC 2012",
        frozen_voc.SETTINGS,
        0,
        (features[train], shown[0].dense(train)),
        (features[held], _truth(labels, held)),
        [torch.from_numpy(one.dense(held)) for one in shown],
        (test, torch.from_numpy(truth.dense())),
    )
    for name, seed in product(TABLES, range(FIRST_SEED, FIRST_SEED + seeds)):
        features, labels = mulan.read_set(data, name)
        rest, test_rows = split(len(labels), 1 / 3, seed)
        train, held = (rest[rows] for rows in split(len(rest), 0.2, seed))
        shown = [single_positive(labels, 1000 * seed + i) for i in range(draws)]
        yield Task(
            f"{name}, seed {seed}",
            mulan.SETTINGS,
            seed,
            (features[train], shown[0].dense(train)),
            (features[held], _truth(labels, held)),
            [torch.from_numpy(one.dense(held)) for one in shown],
            (features[test_rows], _truth(labels, test_rows)),
        )


def changes() -> list[tuple[float, float, float]]:
    """Plain settings first."""
    return sorted(product(RATES, LENGTHS, DECAYS), key=lambda factors: factors != (1.0, 1.0, 1.0))


def measure(task: Task, method: str, change: tuple[float, float, float]) -> dict[str, Any]:
    """Test mAP and what each rule says; for plain settings, what each calibration makes of the test rows."""
    keys = ("lr", "epochs", "weight_decay")
    settings = {key: task.plain[key] * factor for key, factor in zip(keys, change, strict=True)}
    settings["epochs"] = round(settings["epochs"])
    model = PartialLabelClassifier(method, random_state=task.seed, **{**task.plain, **settings}).fit(*task.train)
    held, test = (torch.from_numpy(model.decision_function(part[0])) for part in (task.held, task.test))
    truth = task.test[1]
    run = {"method": method, "plain": change == (1.0, 1.0, 1.0), **settings}
    run["test mAP"] = round(100 * mean_average_precision(test, truth).value, 3)
    run["rules"] = {name: [round(rule(held, y, task.held[1]), 6) for y in task.draws] for name, rule in RULES.items()}
    if run["plain"] and method in CALIBRATED:
        found = {name: most_likely(held, task.draws[0], kind)[0] for name, kind in LIKELIHOODS.items()}
        scales = {name: Calibration(math.exp(log_a), b) for name, (log_a, b) in {"none": (0.0, 0.0), **found}.items()}
        p = {name: scale.probabilities(test).double() for name, scale in scales.items()}
        p[RENORMED] = p["given something"] / (1 - (1 - p["given something"]).prod(1, keepdim=True)).clamp(1e-12)
        numbers = {name: [round(scales[name].a, 4), round(scales[name].b, 4)] for name in found}
        run["calibrations"] = {name: {**quality(q, truth), "a, b": numbers.get(name)} for name, q in p.items()}
    return run


LIKELIHOODS = {"plain": selection_nll, "given something": given_something}
RENORMED = "given something, p too"  # every test row has a label: p / (1 − Π (1 − p))

RULES: dict[str, Callable[[Tensor, Tensor, Tensor], float]] = {
    "observed": lambda z, y, _: -most_likely(z, y, selection_nll)[1],
    "observed, given something": lambda z, y, _: -most_likely(z, y, given_something)[1],
    "observed, not calibrated": lambda z, y, _: -float(selection_nll(z, y)[0].mean()),
    "softmax likelihood": lambda z, y, _: float(F.log_softmax(z.double(), 1)[y > 0].mean()),
    "reciprocal rank": lambda z, y, _: float((1 / (1 + (z > _written(z, y)).sum(1))).mean()),
    "mAP, unwritten is absent": lambda z, y, _: mean_average_precision(z, y > 0).value,
    "AUC, unwritten is absent": lambda z, y, _: _auc(z, y > 0),
    "clean mAP": lambda z, _, truth: mean_average_precision(z, truth).value,
}


def quality(p: Tensor, truth: Tensor) -> dict[str, float]:
    """F1 scores at 0.5, calibration error in percent, −log likelihood of the truth and labels a row."""
    p, present = p.clamp(max=1.0), (truth > 0).double()
    f1 = f1_scores(p, truth)
    bins = (p * BINS).long().clamp_(max=BINS - 1).flatten()
    gap = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, (p - present).flatten()).abs()
    nll = F.binary_cross_entropy(p, present, reduction="sum") / len(p)
    values = {"CF1": 100 * f1.cf1, "OF1": 100 * f1.of1, "ECE": 100 * gap.sum() / p.numel(), "nll a row": nll}
    values |= {"labels a row": p.sum() / len(p), "truth": present.sum() / len(p)}
    return {name: round(float(value), 4) for name, value in values.items()}


def compare(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each rule: rank correlations with the test mAP, and regrets; of the first draw, and of all for the spread."""
    return {name: _agreement(runs, name) for name in RULES}


def compare_stored(folder: Path) -> dict[str, dict[str, Any]]:
    """The runs of a bench that the rules saw, at their last epochs and at every one, compared as above."""
    results = [json.loads(file.read_text())["body"] for file in sorted(folder.glob("*.json"))]
    seen = [result for result in results if "rules observed score" in result["history"][-1]]
    names = {"observed": "rules observed score", "clean mAP": "rules clean score"}
    found = {}
    for name, epochs in {"the last epochs": slice(-1, None), "all epochs": slice(None)}.items():
        runs = [
            {
                "method": result["recipe"]["method"]["name"],
                "plain": result["row"].endswith(", fair") and epoch is result["history"][-1],
                "draw": result["draw"],
                "rules": {rule: [epoch[key]] for rule, key in names.items()},
                "test mAP": epoch["rules mAP"],
            }
            for result in seen
            for epoch in result["history"][epochs]
        ]
        draws = [[run for run in runs if run["draw"] == draw] for draw in sorted({run["draw"] for run in runs})]
        rules = {rule: [_agreement(part, rule) for part in draws] for rule in names}
        means = {rule: {key: [one[key][0] for one in each] for key in each[0]} for rule, each in rules.items()}
        found[name] = {"runs": runs, "rules": means}
    return found


def _agreement(runs: Sequence[dict[str, Any]], rule: str) -> dict[str, Any]:
    methods = [[run for run in runs if run["method"] == m] for m in dict.fromkeys(run["method"] for run in runs)]
    own = [part for part in methods if len(part) > 2]  # of fewer there is nothing to rank
    plain = [run for run in runs if run["plain"]]
    draws = range(len(runs[0]["rules"][rule]))
    found = [
        {
            "all": _rank(runs, rule, d),
            "within methods": statistics.median([_rank(part, rule, d) for part in own]) if own else math.nan,
            "across methods": _rank(plain, rule, d),
            "regret": _regret(runs, rule, d),
            "regret within methods": statistics.mean([_regret(part, rule, d) for part in own]) if own else math.nan,
        }
        for d in draws
    ]
    return {key: [round(one[key], 3) for one in found] for key in found[0]}


def _rank(runs: Sequence[dict[str, Any]], rule: str, draw: int) -> float:
    return float(spearmanr([run["rules"][rule][draw] for run in runs], [run["test mAP"] for run in runs]).statistic)


def _regret(runs: Sequence[dict[str, Any]], rule: str, draw: int) -> float:
    chosen = max(runs, key=lambda run: run["rules"][rule][draw])
    return float(max(run["test mAP"] for run in runs) - chosen["test mAP"])


def show(entry: dict[str, Any]) -> None:
    """Two Markdown tables; figures are means over the draws."""
    best = max(entry["runs"], key=lambda run: run["test mAP"])
    print(f"\n{entry['task']}: {len(entry['runs'])} settings, best {best['test mAP']:.2f} ({best['method']})\n")
    columns = list(next(iter(entry["rules"].values())))
    print(f"| rule | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, figures in entry["rules"].items():
        print(f"| {name} | {' | '.join(f'{statistics.mean(figures[key]):.2f}' for key in columns)} |")
    if not any("calibrations" in run for run in entry["runs"]):
        return
    columns = ["CF1", "OF1", "ECE", "nll a row", "labels a row", "truth"]
    print(f"\n| method | calibration | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for run in entry["runs"]:
        for name, figures in run.get("calibrations", {}).items():
            print(f"| `{run['method']}` | {name} | {' | '.join(f'{figures[key]:.2f}' for key in columns)} |")
    print(flush=True)


def _auc(z: Tensor, written: Tensor) -> float:
    """Mean over the classes that were written in some rows and not in all."""
    some = written.any(0) & ~written.all(0)
    return float(roc_auc_score(written[:, some].numpy(), z[:, some].numpy(), average="macro"))


def _written(z: Tensor, y: Tensor) -> Tensor:
    """[N, 1] the logit of the label that was written."""
    return z.masked_fill(y <= 0, -torch.inf).amax(1, keepdim=True)


def _truth(labels: Labels, rows: np.ndarray) -> Tensor:
    return torch.from_numpy(labels.dense(rows))


def _sizes(task: Task) -> dict[str, int]:
    return {"train": len(task.train[0]), "held out": len(task.held[0]), "test": len(task.test[0])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", default="", help="the VOC2012 folder")
    parser.add_argument("--cache", type=Path, default=None, help="folder of the features")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of Mulan's ARFF and XML files")
    parser.add_argument("--seeds", type=int, default=2, help="of the tables")
    parser.add_argument("--draws", type=int, default=3, help="of the held-out rows' labels")
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    parser.add_argument("--runs", type=Path, default=None, help="folder of a bench's results, compared instead")
    main(**vars(parser.parse_args()))
