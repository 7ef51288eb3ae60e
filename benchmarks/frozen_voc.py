"""VOC 2012 from one label an image, on frozen features: every method that can learn from them, in seconds each.

    python -m benchmarks.frozen_voc --images VOCdevkit/VOC2012 --json frozen_voc.json

EfficientNet-Lite0 (ImageNet weights) sees each image once at 256 px; its pooled features are kept in a cache, and a
linear head is trained on them with the published rows and labels (4,574 training images with one positive each, 5,823
test images). Epochs, learning rate and all else are the same for every method, the last epoch counts, and seeds change
the starting weights and the order of the rows, not the labels. Beside each mAP is its difference to that of `an`, seed
by seed. The settings were chosen once for `an`, `em`, `gr` and all labels together, on the 1,143 training images that
the published split holds out. `bce` is left out: without absent labels it has nothing to tell apart.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.paired import gain, summary, text
from benchmarks.voc_features import read_voc
from pluralis.data.protocols import single_positive, split
from pluralis.estimator import PartialLabelClassifier
from pluralis.methods import every_method
from pluralis.metrics import mean_average_precision

SETTINGS: dict[str, Any] = {
    "epochs": 15,
    "batch_size": 32,
    "lr": 1e-3,
    "weight_decay": 1e-2,
    "standardize": False,
    "validation_fraction": 0,
}
BASE, ALL = "an", "all labels (bce)"


def main(
    images: str, cache: Path | None, seeds: int, methods: list[str], start_bias: str, json_file: Path | None
) -> list[dict[str, Any]]:
    start = time.perf_counter()
    (train_X, labels), (test_X, truth) = read_voc(images, cache)
    print(f"features: {time.perf_counter() - start:.0f} s")
    rows, _ = split(len(labels), 0.2, 1200)
    given, complete = single_positive(labels, 1200).dense(rows), labels.dense(rows)
    target = torch.from_numpy(truth.dense())
    table: list[dict[str, Any]] = []
    facts = {"settings": SETTINGS, "seeds": seeds, "train": len(rows), "test": len(truth), "start_bias": start_bias}
    machine = {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    machine["torch"] = torch.__version__
    base: list[float] = []
    chosen = methods or [name for name in every_method() if name != "bce"]
    for method in (BASE, ALL, *(name for name in chosen if name != BASE)):
        scores, start = [], time.perf_counter()
        try:
            for seed in range(seeds):
                model = PartialLabelClassifier(
                    "bce" if method == ALL else method, random_state=seed, start_bias=start_bias, **SETTINGS
                )
                model.fit(train_X[rows], complete if method == ALL else given)
                odds = torch.from_numpy(model.decision_function(test_X))
                scores.append(100 * mean_average_precision(odds, target).value)
        except ValueError as error:
            print(f"{method:20} left out: {error}", flush=True)
            continue
        base = base or scores
        took = (time.perf_counter() - start) / seeds
        figures, difference = summary(scores), gain(scores, base)
        table.append(
            {
                "method": method,
                "mAP": figures,
                f"over {BASE}": difference,
                "seconds": round(took, 1),
                "runs": [round(s, 2) for s in scores],
            }
        )
        print(f"{method:20} mAP {text(figures)}  over {BASE} {text(difference, '+')}  {took:.1f} s", flush=True)
        if json_file is not None:  # after each method: what is measured is kept if the rest is broken off
            json_file.write_text(json.dumps({**facts, **machine, "rows": table}, indent=1, allow_nan=False) + "\n")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", required=True, help="the VOC2012 folder")
    parser.add_argument("--cache", type=Path, default=None, help="folder of the features")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=[], help="default: all that run on features")
    parser.add_argument("--start-bias", default="method", help="of the head: method (its own), zero or log-odds")
    parser.add_argument("--json", type=Path, default=None, dest="json_file")
    main(**vars(parser.parse_args()))
