"""Assign pseudo-labels to 120,000 × 81 labels: seconds an epoch, and growth of peak memory against the state's own.

The work is done by one thread, so on an idle machine its CPU seconds are the seconds that pass; they are what is held
against the bar, since a busy machine adds waiting to the others.
"""

from __future__ import annotations

import json
import subprocess
import sys

ROWS, CLASSES = 120_000, 81
SECONDS, STATES = 0.3, 2.0

# In a process of its own: the peak of a process never falls again.
PROGRAM = """
import json, sys, time
import numpy as np
import torch
from pluralis.labels import Labels
from pluralis.method import Clock, Setup
from pluralis.methods.em_apl import EmApl
from pluralis.models import create_model
rows, classes = map(int, sys.argv[1:])
picks = np.random.default_rng(0).integers(classes, size=rows)
labels = Labels.from_entries(np.arange(rows), picks, np.ones(rows, np.int64), (rows, classes))
method = EmApl(Setup(lambda: create_model("tiny", classes), classes, labels), theta=0.9, warmup=0)
logits = torch.randn(rows, classes)
for buffer in (method.guesses.value, method.guesses.since):
    buffer.fill_(1).zero_()  # so that its pages are there before the measurement
from benchmarks.memory import peak_megabytes as peak
before, seconds, passed = peak(), [], []
for epoch in range(5):
    logits.add_(torch.randn(classes))
    start = time.process_time(), time.perf_counter()
    method.start_epoch(Clock(epoch=epoch, epochs=5), lambda: logits)
    seconds.append(time.process_time() - start[0])
    passed.append(time.perf_counter() - start[1])
state = sum(b.nbytes for b in (method.guesses.value, method.guesses.since)) / 2**20
print(json.dumps({"seconds": max(seconds), "passed": max(passed), "megabytes": peak() - before, "state": state}))
"""


def main() -> dict[str, float]:
    """Measure, print a line, and give the figures."""
    command = [sys.executable, "-c", PROGRAM, str(ROWS), str(CLASSES)]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    seconds, ratio = figures["seconds"], figures["megabytes"] / figures["state"]
    verdict = "ok" if seconds < SECONDS and ratio < STATES else "TOO MUCH"
    print(
        f"pseudo-labels: {ROWS:,} × {CLASSES}: {seconds:.2f} s CPU in the slowest epoch (bar {SECONDS:g}; "
        f"{figures['passed']:.2f} s passed), +{figures['megabytes']:.0f} MB, {ratio:.2f} × the state's "
        f"{figures['state']:.0f} MB (bar {STATES:g}): {verdict}"
    )
    return figures


if __name__ == "__main__":
    main()
