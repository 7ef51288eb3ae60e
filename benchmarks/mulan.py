"""Small tables with many labels (Mulan), one positive label kept a row: every method that runs on features.

    python -m benchmarks.mulan --data mulan --json mulan.json

--data holds NAME.orig.arff[.gz] (or NAME.arff) and NAME.xml[.gz]. A seed draws a third of the rows for the test and the
label that each training row keeps; the linear model, its features, epochs and learning rate are the same for every
method, and the last epoch counts: no label beside the kept ones is looked at. Rows without any present label stay in as
rows of which nothing is known. Mean average precision on the complete labels of the test rows, in percent, and its
difference to that of `an`, seed by seed. Epochs and learning rate were set once, by the test rows of seed 0 for `an`,
`em`, `gr` and all labels, where none of the four sets is far from its best; seed 0 is therefore not among those that
are reported.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defusedxml.ElementTree import fromstring
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from benchmarks.arff import read_arff
from benchmarks.paired import gain, summary, text
from pluralis.data.protocols import single_positive, split
from pluralis.estimator import PartialLabelClassifier
from pluralis.labels import Labels
from pluralis.methods import every_method
from pluralis.metrics import mean_average_precision

SETS = ("emotions", "scene", "yeast", "birds")
SETTINGS: dict[str, Any] = {
    "epochs": 30,
    "min_steps": 0,
    "batch_size": 64,
    "lr": 3e-3,
    "weight_decay": 1e-2,
    "validation_fraction": 0,
}
BASE, LOGISTIC, ALL = "an", "logistic regression, assume negative", "all labels (bce)"
_ABSENT = {"unlabelled": "absent"}
NAMED: dict[str, tuple[str, dict[str, Any] | None]] = {
    ALL: ("bce", None),
    "selection, a row without label has none": ("selection", _ABSENT),
    "relabel, a row without label has none": ("relabel", {"loss_params": _ABSENT}),
}


def main(data: Path, seeds: int, hidden: int, methods: list[str], json_file: Path | None) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    tables = {name: read_set(data, name) for name in SETS}
    rows: list[dict[str, Any]] = []
    base: dict[str, list[float]] = {}
    chosen = methods or [*(name for name in every_method() if name != "bce"), *(name for name in NAMED if name != ALL)]
    for method in (BASE, ALL, LOGISTIC, *(name for name in chosen if name != BASE)):
        start = time.perf_counter()
        try:
            scores = {
                name: [measure(method, *table, seed, hidden) for seed in range(1, seeds + 1)]
                for name, table in tables.items()
            }
        except ValueError as error:
            print(f"{method:42} left out: {error}", flush=True)
            continue
        base = base or scores
        found = {name: _cell(values, base[name]) for name, values in scores.items()}
        seconds = (time.perf_counter() - start) / seeds / len(SETS)
        rows.append({"method": method, "seconds": round(seconds, 2), **found})
        cells = [f"{name} {text(cell)} ({text(cell[f'over {BASE}'], '+')})" for name, cell in found.items()]
        print(f"{method:42} {'  '.join(cells)}  {seconds:.2f} s", flush=True)
        if json_file is not None:  # after each method: what is measured is kept if the rest is broken off
            facts = {"settings": {**SETTINGS, "hidden": hidden}, "seeds": seeds, "torch": torch.__version__}
            machine = {"machine": platform.processor() or platform.machine(), "threads": 1}
            json_file.write_text(json.dumps({**facts, **machine, "rows": rows}, indent=1, allow_nan=False) + "\n")
    return rows


def read_set(folder: Path, name: str) -> tuple[np.ndarray, Labels]:
    """Features [N, D], nominal ones one by one, and complete labels."""
    table = read_arff(_file(folder, name, (".orig.arff", ".arff")))
    path = _file(folder, name, (".xml",))
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    classes = [label.attrib["name"] for label in fromstring(text) if label.tag.endswith("label")]
    places = {attribute: i for i, attribute in enumerate(table.names)}
    columns = []
    for i, attribute in enumerate(table.names):
        if attribute in classes:
            continue
        values, kind = table.values[:, i], table.kinds[i]
        columns += [values == k for k in range(len(kind))] if len(kind) > 2 else [values]
    truth = np.where(table.values[:, [places[c] for c in classes]] > 0, 1, -1)
    return np.stack(columns, 1).astype(np.float64), Labels.from_dense(truth, classes)


def measure(method: str, features: np.ndarray, truth: Labels, seed: int, hidden: int = 0) -> float:
    """Test mAP of one method under one seed."""
    train, test = split(len(truth), 1 / 3, seed)
    shown = truth.select(train)
    given = (shown if method == ALL else single_positive(shown, seed)).dense()
    if method == LOGISTIC:
        scores = _logistic(features[train], given > 0, features[test])
    else:
        name, params = NAMED.get(method, (method, None))
        model = PartialLabelClassifier(name, method_params=params, hidden=hidden, random_state=seed, **SETTINGS)
        scores = model.fit(features[train], given).decision_function(features[test])
    return 100 * mean_average_precision(torch.from_numpy(scores), torch.from_numpy(truth.dense(test))).value


def _logistic(train: np.ndarray, present: np.ndarray, test: np.ndarray) -> np.ndarray:
    """One model for each class; a class that is never or always written gets a constant."""
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    scores = np.zeros((len(test), present.shape[1]))
    for c in range(present.shape[1]):
        if 0 < present[:, c].sum() < len(present):
            scores[:, c] = LogisticRegression(max_iter=2000).fit(train, present[:, c]).decision_function(test)
    return scores


def _cell(values: list[float], base: list[float]) -> dict[str, Any]:
    return {**summary(values), f"over {BASE}": gain(values, base), "mAP": [round(v, 2) for v in values]}


def _file(folder: Path, name: str, endings: tuple[str, ...]) -> Path:
    for ending in endings:
        for path in (folder / f"{name}{ending}", folder / f"{name}{ending}.gz"):
            if path.is_file():
                return path
    raise FileNotFoundError(f"{folder} holds no {name}{endings[0]}: name the folder of the Mulan files with --data")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the ARFF and XML files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=0, help="units of a hidden layer; 0 for a linear model")
    parser.add_argument("--methods", nargs="*", default=[], help="default: all")
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    main(**vars(parser.parse_args()))
