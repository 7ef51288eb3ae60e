"""How well probabilities are calibrated by written labels alone, by one picked label and by two rates.

    python benchmarks/calibration_rules.py

Simulated rows of 20 classes whose true log-odds are known, held out with labels that were written in several ways; the
calibration is measured on 3,000 other rows. For each way of writing, the worst case over the kinds of logits (sure,
unsure, noisy; as they are, three times too sure, not sure enough): how far the expected labels a row and the Brier
score lie from those of a calibration by the whole truth.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit

from pluralis.calibration import Calibration, calibrate
from pluralis.conditional_calibration import most_likely
from pluralis.losses.selection import selection_nll

Array = npt.NDArray[np.float64]
TEST, CLASSES = 3000, 20
KINDS = {"sure": (-5.1, 3.0, 0.0), "unsure": (-2.5, 1.5, 0.0), "noisy": (-3.4, 2.0, 2.0)}  # mean, spread, noise
LOGITS = {"as they are": (1.0, 0.0), "too sure": (3.0, 0.0), "not sure enough": (0.4, -0.5)}
WAYS = {
    "10 % of all labels": (0.1, 0.1),
    "20 % of all labels": (0.2, 0.2),
    "50 % of all labels": (0.5, 0.5),
    "90 % of all labels": (0.9, 0.9),
    "one picked, 5 % of the absent": (None, 0.05),
    "60 % of the present, 10 % of the absent": (0.6, 0.1),
    "30 % of the present, 2 % of the absent": (0.3, 0.02),
}


def write(present: npt.NDArray[np.bool_], rate: float | None, verified: float, rng: np.random.Generator) -> Array:
    draw = rng.random(present.shape)
    order = np.where(present, draw, 0.0)
    shown = present & (order == order.max(1, keepdims=True) if rate is None else draw < rate)
    return shown.astype(float) - (~present & (draw < verified))


def figures(z: Array, present: npt.NDArray[np.bool_], scale: Calibration) -> Array:
    p = expit(scale.a * z + scale.b)
    return np.array([p.sum(1).mean() - present.sum(1).mean(), ((p - present) ** 2).mean()])


def measure(rows: int, seeds: int) -> None:
    print(f"{rows} held-out rows, {seeds} draws; off by: labels a row / Brier score")
    for way, (rate, verified) in WAYS.items():
        worst = dict.fromkeys(("not calibrated", "one picked", "by rates"), np.zeros(2))
        for mean, spread, noise in KINDS.values():
            for a, b in LOGITS.values():
                found: dict[str, list[Array]] = {}
                for seed in range(seeds):
                    rng = np.random.default_rng(seed)
                    true = rng.normal(rng.normal(mean, 0.8, CLASSES), spread, (rows + TEST, CLASSES))
                    present = rng.random(true.shape) < expit(true)
                    z = a * (true + rng.normal(0, 1, true.shape) * noise) + b
                    y = torch.from_numpy(write(present[:rows], rate, verified, rng))
                    held = torch.from_numpy(z[:rows])
                    theta, _ = most_likely(held, y, selection_nll)
                    clean, _ = calibrate(held, torch.from_numpy(np.where(present[:rows], 1, -1)))
                    scales = {
                        "not calibrated": Calibration(),
                        "one picked": Calibration(math.exp(theta[0]), float(theta[1])),
                        "by rates": calibrate(held, y)[0],
                    }
                    best = figures(z[rows:], present[rows:], clean)
                    for name, scale in scales.items():
                        found.setdefault(name, []).append(figures(z[rows:], present[rows:], scale) - best)
                for name, each in found.items():
                    worst[name] = np.maximum(worst[name], np.abs(np.mean(each, 0)))
        print(f"{way:40}", "   ".join(f"{name} {labels:.2f} / {brier:.4f}" for name, (labels, brier) in worst.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 2000])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for rows in given.rows:
        measure(rows, given.seeds)
