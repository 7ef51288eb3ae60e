"""How many labels there are, from one positive label a row: estimates and intervals against the truth (Mulan tables).

    python -m benchmarks.counting --data mulan --json docs/results/counting.json

--data is as for `benchmarks.mulan`, and so are the model and its settings. A seed draws a third of the rows to be held
out and the label that each row keeps; the method learns from the others, `count_labels` calibrates on the held-out ones
and counts both parts. A row that keeps no label has none ("absent"). Seeds 1 to 3 were looked at when the likelihood of
the calibration was chosen, so they are not among those that are reported.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.mulan import SETS, SETTINGS, read_set
from pluralis.counting import count_labels
from pluralis.data.protocols import single_positive, split
from pluralis.estimator import PartialLabelClassifier
from pluralis.labels import Labels

METHODS = ("an", "gr", "em", "selection")
FIRST_SEED = 6


def main(data: Path, seeds: int = 5, json_file: Path | None = None) -> list[dict[str, Any]]:
    """Print a Markdown table, and give one entry for each set, method and part of the rows."""
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    print("| set | method | rows | labels a row | truth | covered | error by class | classes covered |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in SETS:
        features, truth = read_set(data, name)
        for method in METHODS:
            runs = [measure(method, features, truth, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
            for part in ("trained", "unseen"):
                entry = {"set": name, "method": method, "rows": part, "runs": [run[part] for run in runs]}
                found.append(entry)
                print(_line(entry), flush=True)
    if json_file is not None:
        facts = {"settings": SETTINGS, "first seed": FIRST_SEED, "seeds": seeds, "torch": torch.__version__}
        machine = {"machine": platform.processor() or platform.machine(), "threads": 1}
        json_file.write_text(json.dumps({**facts, **machine, "entries": found}, indent=1, allow_nan=False) + "\n")
    return found


def measure(method: str, features: np.ndarray, truth: Labels, seed: int) -> dict[str, dict[str, Any]]:
    """The counts of one method under one seed, of the rows that it was trained on and of those that it was not."""
    trained, unseen = split(len(truth), 1 / 3, seed)
    given = single_positive(truth, seed).dense()
    model = PartialLabelClassifier(method, random_state=seed, **SETTINGS).fit(features[trained], given[trained])
    logits, complete = model.decision_function(features), truth.dense() > 0
    held = logits[unseen], given[unseen]
    results = {}
    for part, rows in (("trained", trained), ("unseen", unseen)):
        start = time.perf_counter()
        counts = count_labels(logits[rows], given[rows], held, unlabelled="absent", seed=seed)
        right = complete[rows].sum(0)
        errors = [abs(count.expected - n) for count, n in zip(counts.classes, right, strict=True)]
        inside = [count.low <= n <= count.high for count, n in zip(counts.classes, right, strict=True)]
        results[part] = {
            "seed": seed,
            "labels a row": [round(value, 4) for value in counts.per_image],
            "truth": round(float(right.sum() / len(rows)), 4),
            "covered": bool(counts.total.low <= right.sum() <= counts.total.high),
            "error by class": round(float(sum(errors) / right.sum()), 4),
            "classes covered": round(float(np.mean(inside)), 4),
            "calibration": [round(counts.calibration.a, 4), round(counts.calibration.b, 4)],
            "seconds": round(time.perf_counter() - start, 2),
        }
    return results


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
    parser.add_argument("--data", type=Path, required=True, help="folder of the ARFF and XML files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    main(**vars(parser.parse_args()))
