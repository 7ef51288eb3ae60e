"""mAP of 40,137 × 80 scores against a loop over scikit-learn's average precision, in one run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from pluralis.metrics import mean_average_precision

ROWS, CLASSES = 40_137, 80  # COCO's validation images and classes
BAR = 2.0


def main(device: str = "cpu", json_file: str | None = None, repetitions: int = 5) -> list[dict[str, float]]:
    """Print the ratio of times, and give the figures."""
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((ROWS, CLASSES)) < 0.036, 1, -1).astype(np.int8)
    scores = (rng.normal(size=(ROWS, CLASSES)) + truth).astype(np.float32)
    on_device, given = torch.from_numpy(scores).to(device), torch.from_numpy(truth).to(device)
    ours, theirs = [], []
    for _ in range(repetitions):
        start = perf_counter()
        value = mean_average_precision(on_device, given).value  # a float: the device has finished
        ours.append(perf_counter() - start)
        start = perf_counter()
        expected = np.mean([average_precision_score(truth[:, c] > 0, scores[:, c]) for c in range(CLASSES)])
        theirs.append(perf_counter() - start)
    assert abs(value - expected) < 1e-9, (value, expected)
    row = {"seconds": median(ours), "sklearn_seconds": median(theirs), "bar": BAR}
    row["times_faster"] = row["sklearn_seconds"] / row["seconds"]
    verdict = "ok" if row["times_faster"] >= BAR else "BELOW THE BAR"
    print(
        f"mAP of {ROWS:,} × {CLASSES} on {device}: {row['seconds']:.3f} s, "
        f"scikit-learn {row['sklearn_seconds']:.3f} s, {row['times_faster']:.1f} times faster (bar {BAR:g}): {verdict}"
    )
    if json_file:
        Path(json_file).write_text(json.dumps([row], indent=1), encoding="utf-8")
    return [row]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", dest="json_file", help="write the figures to this file")
    main(**vars(parser.parse_args()))
