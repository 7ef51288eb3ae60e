"""What somebody with a few photos gets from `pluralis train`: test mAP, and how good it is at missing labels.

    python -m benchmarks.few_photos --images VOCdevkit/VOC2012 --photos 400 --json docs/results/few_start.json
    python -m benchmarks.few_photos --images VOCdevkit/VOC2012 --photos 200 400 1000 --method selection \\
        --set model.head=lse --set method.start_bias=equal --json docs/results/few_start.json

For each number of photos and each draw: so many photos of VOC 2012's training part, one label each, in a CSV file as
somebody would write it; a run of its own, which chooses all but its size, its twenty classes and what --method and
--set say, and holds out a fifth; then a look at all of these photos, as `pluralis relabel` and `count` do it, and at
the first --test photos of the validation part in random order. Finished runs are not repeated, nor is what --json
holds already. Whoever states a start for `relabel` should state that of its students too
(method.params.student_start=soft).
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pluralis.config import DataPart
from pluralis.data.protocols import single_positive
from pluralis.data.source import load_source
from pluralis.labels import Labels
from pluralis.metrics import average_precision, mean_average_precision
from pluralis.missing_labels import chances, count_missing, look, named_rows, own_rows, together
from pluralis.trained_run import TrainedRun, load_run

LIKELY = 0.5  # from here on `pluralis relabel` names a label as missing
EVERYWHERE = 0.9  # mean p of a class from which on it is said to be in every image


def main(
    images: str,
    photos: list[int],
    draws: list[int],
    method: str,
    settings: list[str],
    size: int,
    test: int,
    out: Path,
    file: Path | None,
) -> None:
    rows = json.loads(file.read_text())["rows"] if file is not None and file.exists() else []
    train, unseen = (_labels(images, part) for part in ("train", "val"))
    pictures = str(Path(images) / "JPEGImages")
    for count in photos:
        for draw in draws:
            what = {"photos": count, "draw": draw, "size": size, "method": method or "as chosen", "settings": settings}
            row = next((row for row in rows if what.items() <= row.items() and row["test photos"] == test), None)
            if row is None:
                truth = _some(train, count, draw)
                folder = out / "-".join(filter(str.isalnum, map(_plain, map(str, what.values()))))
                start = time.perf_counter()
                _train(folder, truth, draw, pictures, method, [f"data.size={size}", *settings])
                seconds = time.perf_counter() - start
                row = what | _measure(load_run(folder), folder, truth, _some(unseen, test, 0), pictures)
                row |= {"test photos": test, "seconds": round(seconds), "date": date.today().isoformat()}
                rows.append(row)
                if file is not None:
                    lines = ",\n".join(json.dumps(one) for one in rows)
                    file.write_text(f'{{"rows": [\n{lines}\n]}}\n')
            print(json.dumps(row), flush=True)


def _labels(images: str, part: str) -> Labels:
    options = {"split": part, "difficult": "absent"}
    return load_source(DataPart(format="voc", images=images, options=options)).labels


def _some(labels: Labels, count: int, draw: int) -> Labels:
    """So many rows that have a label."""
    rows = np.random.default_rng(draw).permutation(len(labels))
    return labels.select([row for row in rows if len(labels.positives(row))][:count])


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum())


def _train(folder: Path, truth: Labels, draw: int, pictures: str, method: str, settings: list[str]) -> None:
    listed = folder.with_suffix(".csv")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _write(listed, single_positive(truth, draw))
    words = ["--images", pictures, "--labels", str(listed), "--seed", str(draw), "--out", str(folder)]
    words += ["--method", method] if method else []
    for setting in (f"data.options={{classes={json.dumps(truth.classes)}}}", *settings):  # written or not
        words += ["--set", setting]
    with open(folder.with_suffix(".log"), "ab") as log:
        subprocess.run([sys.executable, "-m", "pluralis", "train", *words], check=True, stdout=log, stderr=log)


def _write(file: Path, labels: Labels) -> None:
    with open(file, "w", newline="", encoding="utf-8") as text:
        lines = csv.writer(text)
        lines.writerow(("image", "label"))
        for row, name in enumerate(labels.ids):
            lines.writerows((f"{name}.jpg", labels.classes[label]) for label in labels.positives(row))


def _measure(run: TrainedRun, folder: Path, truth: Labels, unseen: Labels, pictures: str) -> dict[str, Any]:
    parts = [look(run, source) for source in own_rows(run, folder) if source is not None]
    mine, held = together(parts), parts[1] if parts[1:] else None
    given, present = torch.from_numpy(mine.labels.dense()), _truth(mine.labels, truth)
    unknown = given == 0
    likely, hidden = chances(run, mine)[0][unknown].double(), present[unknown]
    named = likely > LIKELY
    listed = folder.with_suffix(".test.csv")
    _write(listed, unseen)
    others = look(run, named_rows(run, {"data.images": pictures, "data.labels": str(listed)}))
    there = _truth(others.labels, unseen)
    p = others.logits.double().sigmoid().mean(0)
    return {
        "mAP": round(100 * mean_average_precision(others.logits, there).value, 2),
        "labels an image": {
            "true": round(float(there.sum(1).double().mean()), 2),
            "expected": round(float(p.sum()), 2),
        },
        "in every image": [name for name, often in zip(run.classes, p.tolist(), strict=True) if often > EVERYWHERE],
        "labels of these photos": {
            "true": round(float(present.sum(1).double().mean()), 3),
            "counted, and its interval": [round(end, 3) for end in count_missing(run, mine, held).per_image],
        },
        "missing labels": {
            "true": int(hidden.sum()),
            "expected": round(float(likely.sum())),
            "average precision": round(100 * float(average_precision(likely[:, None], hidden[:, None])), 1),
            "named": int(named.sum()),
            "rightly": int((named & hidden).sum()),
        },
        "start": run.method.start_bias,
        "held-out likelihood": round(run.history[run.chosen].get("val nll", float("nan")), 3),
    }


def _truth(rows: Labels, truth: Labels) -> torch.Tensor:
    """[N, C] whether each label is there, for rows that go by their file's name, in the order of their classes."""
    place = {name: row for row, name in enumerate(truth.ids)}
    order = [truth.classes.index(name) for name in rows.classes]
    return torch.from_numpy(truth.dense()[[place[Path(name).stem] for name in rows.ids]][:, order] > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", required=True, help="the VOC2012 folder")
    parser.add_argument("--photos", type=int, nargs="+", default=[400])
    parser.add_argument("--draws", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--method", default="", help="one that `pluralis train` does not choose by itself")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="of the recipe")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--test", type=int, default=1000, help="photos that are measured on")
    parser.add_argument("--out", type=Path, default=Path("runs/few"))
    parser.add_argument("--json", type=Path, default=None, dest="file", help="results, read and added to")
    main(**vars(parser.parse_args()))
