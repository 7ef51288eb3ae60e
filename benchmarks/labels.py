"""Build 1,000,000 × 80 labels with three known a row: seconds and growth of peak memory, by constructor."""

from __future__ import annotations

import json
import subprocess
import sys

ROWS, CLASSES, KNOWN = 1_000_000, 80, 3
SECONDS, MEGABYTES = 5.0, 1000.0

# Each constructor has a process to itself: the peak of a process never falls again.
PROGRAM = """
import json, sys, time
import numpy as np
from pluralis.labels import Labels
how, rows, classes, known = sys.argv[1], *map(int, sys.argv[2:])
rng = np.random.default_rng(0)
column = (rng.integers(classes, size=rows)[:, None] + np.arange(known) * 7) % classes
if how == "entries":
    order = rng.permutation(rows * known)
    row = np.repeat(np.arange(rows), known)[order]
    flat = column.reshape(-1)[order]
    value = np.where(np.arange(rows * known) % known == 0, 1, -1)[order]
else:
    lists = list(column)
from benchmarks.memory import peak_megabytes as peak
before, start = peak(), time.perf_counter()
if how == "entries":
    labels = Labels.from_entries(row, flat, value, (rows, classes))
else:
    labels = Labels.from_lists(lists, classes)
built = time.perf_counter() - start
labels.summary()
labels.dense(rng.permutation(rows)[:1024])
print(json.dumps({"seconds": built, "megabytes": peak() - before, "known": len(labels.values)}))
"""


def main() -> dict[str, dict[str, float]]:
    """Measure both constructors, print a line for each, and give the figures."""
    figures = {}
    for how in ("entries", "lists"):
        command = [sys.executable, "-c", PROGRAM, how, *map(str, (ROWS, CLASSES, KNOWN))]
        figures[how] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        seconds, megabytes = figures[how]["seconds"], figures[how]["megabytes"]
        verdict = "ok" if seconds < SECONDS and megabytes < MEGABYTES else "TOO MUCH"
        print(
            f"labels from {how}: {ROWS:,} × {CLASSES}, {KNOWN} known a row: "
            f"{seconds:.2f} s (bar {SECONDS:g}), +{megabytes:.0f} MB (bar {MEGABYTES:g}): {verdict}"
        )
    return figures


if __name__ == "__main__":
    main()
