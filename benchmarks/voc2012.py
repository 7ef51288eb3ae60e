"""VOC 2012 from one label an image: every method, several seeds, several runs side by side on one GPU.

    python -m benchmarks.voc2012 --images VOCdevkit/VOC2012 --out runs/voc2012 --jobs 8 --json docs/results/voc2012.json

Groups of runs, in this order:
    fair         the five systems, `an` and all labels under one recipe, last epoch, nothing chosen
    comparators  every other method under that recipe
    published    the five systems with the settings of their papers; learning rate and head factor chosen on clean
                 validation: first the factor at the middle rate, then the rate
    ratios       PU-MLC and CLS, and what they are measured against, when 10, 50 or 90 % of the labels are known

Each run is a `pluralis train` of its own in a folder under --out: what is finished is not repeated, what was
interrupted goes on, and rows that --json holds already with enough seeds are not run again. The file keeps every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAIR = "recipes/voc2012/fair.toml"
RATES, FACTORS = (3e-5, 1e-4, 3e-4), (1, 10)
LABEL_DECODER = ("model.head=label-decoder", "train.head_lr=1")  # at ten times the rate it diverges


@dataclass(frozen=True)
class Row:
    """One line of a table: a method and its settings, run with so many seeds."""

    group: str
    name: str
    method: str
    settings: tuple[str, ...] = ()
    seeds: int = 3
    recipe: str = FAIR

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"

    def folder(self, out: Path, seed: int) -> Path:
        plain = "".join(c if c.isalnum() or c in "+-." else "-" for c in self.key)
        return out / f"{plain}-{seed}"

    def command(self, images: str, out: Path, seed: int, extra: list[str]) -> list[str]:
        words = ["--recipe", self.recipe, "--images", images, "--method", self.method, "--seed", str(seed)]
        for setting in (*self.settings, *extra):
            words += ["--set", setting]
        return [sys.executable, "-m", "pluralis", "train", *words, "--out", str(self.folder(out, seed))]


def fair_rows() -> Iterator[Row]:
    yield Row("fair", "an", "an")
    yield Row("fair", "all labels", "bce", ("data.protocol=complete",))
    yield Row("fair", "em-apl", "em-apl")
    yield Row("fair", "gr", "gr")
    yield Row("fair", "cls", "cls", ("method.params.ramp=1",))
    yield Row("fair", "lac", "lac", (*LABEL_DECODER, "train.epochs=5", "method.params.warmup=5"))
    yield Row("fair", "pu-mlc", "pu-mlc")


def comparator_rows() -> Iterator[Row]:
    from pluralis.methods import every_method

    done = {row.method for row in fair_rows()} | {"bce"}
    for name in every_method():
        if name not in done:
            yield Row("comparators", name, name, seeds=2)
    linear = ("method.params.linear_epochs=5", "train.epochs=5")
    yield Row("comparators", "role, linear start", "role", linear, seeds=2)
    yield Row("comparators", "an, cam-boost head", "an", ("model.head=cam-boost",), seeds=2)
    yield Row("comparators", "an, label-decoder head", "an", LABEL_DECODER, seeds=2)
    yield Row("comparators", "gr, head from log-odds", "gr", ("method.start_bias=log-odds",), seeds=2)


PUBLISHED = {  # file of the recipe, and what is scaled to this backbone, these images and ten epochs
    "em-apl": ("recipes/em-apl/voc12.toml", ()),
    "gr": ("recipes/gr/voc12.toml", ()),
    "cls": (
        "recipes/cls/voc07.toml",
        ("data.size=224", "data.store_size=256", "train.epochs=10", "method.params.ramp=1"),
    ),
    "lac": ("recipes/lac/voc12.toml", ("train.epochs=5", "train.warmup=1")),
    "pu-mlc": (
        "recipes/pu-mlc/voc07.toml",
        (
            "train.epochs=10",
            "train.schedule_epochs=14",
            "train.warmup=3",
            "train.freeze=6",  # what a ResNet's last stage is: all that follows the last halving of the map trains
            "method.params.lgconv=false",
            "model.head=linear",
        ),
    ),
}
SAME = (  # the data, backbone and selection that all published settings share here
    "data.format=voc",
    'data.options={split="train", difficult="absent"}',
    'data.test={options={split="val", difficult="absent"}}',
    "data.protocol=single-positive",
    "data.protocol_seed=1200",
    "data.protocol_share=0.0",
    "data.unlabelled=error",
    "data.size=256",
    "data.store_size=0",
    "model.backbone=efficientnet_lite0",
    "select.rule=clean",
    "select.fraction=0.2",
    "run.cache=device",
)


def published_rows(out: Path, known: dict[str, Any]) -> Iterator[Row]:
    """The grid as far as it can be told: the factor at the middle rate, then the rates, then more seeds."""
    for name, (recipe, scaled) in PUBLISHED.items():

        def row(rate: float, factor: int, seeds: int, name=name, recipe=recipe, scaled=scaled) -> Row:
            settings = (*SAME, *scaled, f"train.lr={rate:g}", f"train.head_lr={factor}")
            return Row("published", f"{name}, lr {rate:g}, head ×{factor}", name, settings, seeds, recipe)

        factors = [row(RATES[1], factor, 1) for factor in FACTORS]
        yield from factors
        scores = [score(one, out, known) for one in factors]
        if None in scores:
            continue
        factor = FACTORS[scores.index(max(scores))]  # type: ignore[type-var]
        rates = [row(rate, factor, 1) for rate in RATES]
        yield from rates
        scores = [score(one, out, known) for one in rates]
        if None not in scores:
            yield row(RATES[scores.index(max(scores))], factor, 3)  # type: ignore[type-var]


def ratio_rows() -> Iterator[Row]:
    for percent in (10, 50, 90):
        share = ("data.protocol=known-ratio", f"data.protocol_share={percent / 100}", "data.unlabelled=keep")
        share += ("data.protocol_seed=0",)
        for method in ("pu-mlc", "cls", "an", "bce"):
            ramp = ("method.params.ramp=1",) if method == "cls" else ()
            yield Row("ratios", f"{method}, {percent} % known", method, (*share, *ramp), seeds=1)


def score(row: Row, out: Path, known: dict[str, Any]) -> float | None:
    """Best mAP on validation of seed 0."""
    for run in known.get(row.key, {}).get("runs", []):
        if run["seed"] == 0:
            return float(run["validation mAP"])
    meta = _meta(row.folder(out, 0))
    return float(meta["history"][meta["chosen"]]["val mAP"]) if meta else None


def rows(groups: list[str], out: Path, known: dict[str, Any]) -> list[Row]:
    made = {
        "fair": lambda: fair_rows(),
        "comparators": lambda: comparator_rows(),
        "published": lambda: published_rows(out, known),
        "ratios": lambda: ratio_rows(),
    }
    best = {row.key: row for group in groups for row in made[group]()}  # the later entry of a key has more seeds
    return list(best.values())


def main(
    images: str,
    out: Path,
    jobs: int,
    groups: list[str],
    only: list[str],
    settings: list[str],
    json_file: Path | None,
    limit: float,
) -> None:
    known = _read(json_file)
    running: dict[tuple[str, int], tuple[float, subprocess.Popen[bytes]]] = {}
    failed: set[tuple[str, int]] = set()
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def next_job() -> tuple[Row, int] | None:
        if time.monotonic() - start > limit:
            return None
        wanted = [row for row in rows(groups, out, known) if not only or row.method in only]
        for group in groups:  # within a group seed by seed, so that every method has one before any has three
            for seed in range(3):
                for row in wanted:
                    place = (row.key, seed)
                    if row.group != group or seed >= row.seeds or place in running or place in failed:
                        continue
                    have = {run["seed"] for run in known.get(row.key, {}).get("runs", [])}
                    if seed not in have and _meta(row.folder(out, seed)) is None:
                        return row, seed
        return None

    while True:
        while len(running) < jobs and (job := next_job()):
            row, seed = job
            with open(f"{row.folder(out, seed)}.log", "ab") as log:
                process = subprocess.Popen(
                    row.command(images, out, seed, settings), stdout=log, stderr=subprocess.STDOUT
                )
            running[row.key, seed] = (time.monotonic(), process)
        if not running:
            break
        time.sleep(0.3)
        for place, (since, process) in list(running.items()):
            if process.poll() is not None:
                del running[place]
                if process.returncode:
                    failed.add(place)
                now = time.monotonic()
                print(
                    f"{now - start:6.0f} s  {place[0]}, seed {place[1]}: exit {process.returncode},"
                    f" {now - since:.0f} s",
                    flush=True,
                )
                if json_file is not None:
                    _write(json_file, known, rows(groups, out, known), out, settings)
    for row in rows(groups, out, known):
        line = _line(row, out, known)
        if line:
            print(json.dumps({k: v for k, v in line.items() if k not in ("runs", "settings", "recipe")}))


def _meta(folder: Path) -> dict[str, Any] | None:
    path = folder / "model.json"
    if not path.exists():
        return None
    meta: dict[str, Any] = json.loads(path.read_text())["body"]["meta"]
    return meta


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    return {f"{row['group']}: {row['name']}": row for row in json.loads(path.read_text())["rows"]}


def _write(path: Path, known: dict[str, Any], wanted: list[Row], out: Path, settings: list[str]) -> None:
    import torch

    lines = dict(known)
    for row in wanted:
        if line := _line(row, out, known):
            lines[row.key] = line
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    document = {"device": device, "torch": torch.__version__, "settings": settings, "rows": list(lines.values())}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)


def _line(row: Row, out: Path, known: dict[str, Any]) -> dict[str, Any] | None:
    """All runs of a row: those that the file holds, and those that are finished here."""
    runs = {run["seed"]: run for run in known.get(row.key, {}).get("runs", [])}
    for seed in range(row.seeds):
        meta = _meta(row.folder(out, seed))
        if meta is None:
            continue
        figures = {k: v for k, v in meta["test"].items() if k.endswith(("mAP", "CF1", "OF1"))}
        runs[seed] = {"seed": seed, **figures, "seconds": meta["seconds"], "epoch": meta["chosen"] + 1}
        if "val mAP" in meta["history"][meta["chosen"]]:
            runs[seed]["validation mAP"] = meta["history"][meta["chosen"]]["val mAP"]
    if not runs:
        return None
    line: dict[str, Any] = {"group": row.group, "name": row.name, "method": row.method, "seeds": len(runs)}
    line |= {"recipe": row.recipe, "settings": list(row.settings)}
    for key in ("mAP", "CF1", "OF1", "seconds"):
        values = [run[key] for run in runs.values()]
        spread = statistics.stdev(values) if len(values) > 1 else None
        line[key] = {"mean": round(statistics.mean(values), 2), "sd": None if spread is None else round(spread, 2)}
    return {**line, "runs": [runs[seed] for seed in sorted(runs)]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", required=True, help="the VOC2012 folder")
    parser.add_argument("--out", type=Path, default=Path("runs/voc2012"))
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--groups", nargs="+", default=["fair", "comparators", "published", "ratios"])
    parser.add_argument("--only", nargs="+", default=[], help="these methods alone")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="over every recipe")
    parser.add_argument("--json", type=Path, default=None, dest="json_file", help="results, read and added to")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start nothing new after so many seconds")
    main(**vars(parser.parse_args()))
