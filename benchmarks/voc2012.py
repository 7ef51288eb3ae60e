"""VOC 2012 from one label an image: every method, several seeds, several runs side by side on one GPU.

    python -m benchmarks.voc2012 --images VOCdevkit/VOC2012 --out runs/voc2012 --jobs 8 --json docs/results/voc2012.json

Groups of runs, in this order:
    fair         the five systems, `an` and all labels under one recipe, last epoch, nothing chosen
    comparators  every other method under that recipe
    published    the five systems with the settings of their papers; learning rate and head factor chosen on clean
                 validation: first the factor at the middle rate, then the rate
    ratios       PU-MLC and CLS, and what they are measured against, when 10, 50 or 90 % of the labels are known
    default      our default and all that it is to beat, with pooled class maps, by three kinds of views
    large        the first of them at 320 px
    draw         the five systems, `an` and ours with a second draw of the labels
    mean         all of them with mean pooling
    shares       75, 50 or 25 % of the positives left, and no negatives
    picks        annotators who do not pick at random
    ideas        options of our default and of its head, one seed, and all labels with the same head
    start        heads from the other bias: pooled class maps and `gr` from log-odds, others with mean pooling from zero
    decoder      what of LAC is its head, its rates and its two terms
    kept-…       fair, ratios, default, large, draw, mean, shares, picks, ideas or start, with the statistics of the
                 batch norms kept as they are; beside `relabel` with one student from zero, as the other groups have it,
                 `relabel as chosen`, which is what `pluralis train` does, and `all labels as chosen`, the same with
                 every label written

Each run is a `pluralis train` in a folder of its own under --out: what is finished is not repeated, what was
interrupted goes on, and runs that --json holds already are not run again. --jobs processes share the work; each makes
one run after the other, since starting on a GPU takes as long as a short run. Let them share the GPU by CUDA's
Multi-Process Service (`nvidia-cuda-mps-control -d`): otherwise they take turns. The file keeps every run with a hash of
its recipe (all that decides the result, and no paths), its date, device and versions; a run of another recipe is run
anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import hashlib
import inspect
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

FAIR = "recipes/voc2012/fair.toml"
FACTORS = (1, 10)
VIEWS_FILE = "views.json"  # beside a run's model
MORE_VIEWS = ("standard", "thorough")
# Of methods that have changed since the first runs: what a recipe meant then that does not say it.
FIRST_DEFAULTS: dict[str, dict[str, Any]] = {
    "csl": {"likely": 5},
    "relabel": {"student_start": "head", "students": 1},
    "splc": {"variant": "hill"},
    "vpu": {"no_positive": "keep"},
}
LABEL_DECODER = ("model.head=label-decoder", "train.head_lr=1")  # at ten times the rate it diverges
LAC = (*LABEL_DECODER, "train.epochs=5", "method.params.warmup=5")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: a method and its settings, run with so many seeds."""

    group: str
    name: str
    method: str
    settings: tuple[str, ...] = ()
    seeds: int = 3
    recipe: str = FAIR
    views: bool = False  # figures with many views too

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"

    def recipe_hash(self, extra: list[str]) -> str:
        """Of all that decides the result, whatever the seed."""
        from pluralis.config import Recipe
        from pluralis.methods import method_class

        loaded = Recipe.load(Path(self.recipe), [*self.settings, *extra], {"method.name": self.method})
        recipe = loaded.to_dict()
        recipe["data"] |= {"images": "", "labels": "", "protocol_seed": loaded.data.draw_seed}
        recipe["model"] |= {"weights": bool(recipe["model"]["weights"]), "dropout": recipe["model"]["dropout"] or 0.0}
        params, now = recipe["method"]["params"], inspect.signature(method_class(self.method)).parameters
        for name, first in FIRST_DEFAULTS.get(self.method, {}).items():
            if params.setdefault(name, now[name].default) == first:
                del params[name]
        recipe["select"]["images"] = recipe["select"]["images"] or None
        recipe["run"] = {key: recipe["run"][key] for key in ("precision", "deterministic")}
        plain = Recipe().to_dict()  # a setting that is new since, and at its default, makes no other recipe
        # The defaults when the first runs were made.
        plain["data"] |= {"size": 256, "protocol_seed": 1200}
        plain["model"] |= {"head": "linear", "dropout": 0.0}
        plain["train"] |= {"epochs": 10, "freeze_bn": False}
        said = {p: {k: v for k, v in part.items() if v != plain[p][k] or k == "name"} for p, part in recipe.items()}
        own, deep = method_class(self.method).start_bias, method_class(self.method).deep_start_bias
        start, maps = loaded.method.start_bias, loaded.model.head in ("lse", "csra")
        if start == "method" and (deep or (maps and own == "log-odds")):
            said["method"]["start_bias"] = "zero"  # as it is with 20 classes; the first runs followed the method
        elif start == own and deep and not maps:
            del said["method"]["start_bias"]  # as those of `gr` did
        if self.method == "lac" and recipe["select"]["rule"] != "last":
            said["select"]["from"] = "the last stage"  # the first runs chose from both
        if self.method == "lac" and params.get("variant") != "released":
            said["method"]["contrast"] = "Eq. 7"  # the first runs had both views as anchors
        picks = self.method in ("selection", "relabel") and "mechanism" not in (params.get("loss_params") or params)
        if picks and recipe["data"]["protocol"] in ("drop-positives", "known-ratio"):
            said["method"]["picked"] = "as many as are written"  # in the first runs the last of them
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def fair_rows() -> Iterator[Row]:
    yield Row("fair", "an", "an")
    yield Row("fair", "all labels", "bce", ("data.protocol=complete",))
    yield Row("fair", "em-apl", "em-apl")
    yield Row("fair", "gr", "gr")
    yield Row("fair", "cls", "cls", ("method.params.ramp=1",))
    yield Row("fair", "lac", "lac", LAC)
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
    yield Row("comparators", "splc, hill", "splc", ("method.params.variant=hill",), seeds=2)
    yield Row("comparators", "vpu, no positive kept", "vpu", ("method.params.no_positive=keep",), seeds=2)
    yield Row("comparators", "csl, 5 likely", "csl", ("method.params.likely=5",), seeds=2)
    for name in ("co-teaching", "co-teaching+", "jocor"):  # as `cls`; their default, 10, is the whole run
        ramp = ("method.params.ramp=1", *(("method.params.warmup=1",) if name == "co-teaching+" else ()))
        yield Row("comparators", f"{name}, ramp 1", name, ramp, seeds=2)
    log_odds = ("method.start_bias=log-odds",)
    yield Row("comparators", "an, head from log-odds", "an", log_odds)
    yield Row("comparators", "gr, head from log-odds", "gr", log_odds)
    yield Row("comparators", "cls, head from log-odds", "cls", (*log_odds, "method.params.ramp=1"))
    yield Row("comparators", "lac, head from log-odds", "lac", (*log_odds, *LAC))


PUBLISHED = {  # file of the recipe, rates (the paper's among them), and what is scaled to this backbone and ten epochs
    "em-apl": ("recipes/em-apl/voc12.toml", (1e-5, 3e-5, 1e-4), ()),
    "gr": ("recipes/gr/voc12.toml", (1e-5, 3e-5, 1e-4), ()),
    "cls": (
        "recipes/cls/voc07.toml",
        (4e-5, 1.2e-4, 4e-4),
        ("data.size=224", "data.store_size=256", "train.epochs=20", "method.params.ramp=2"),
    ),
    "lac": ("recipes/lac/voc12.toml", (1e-5, 3e-5, 1e-4), ("train.epochs=5", "train.warmup=1")),
    "pu-mlc": (
        "recipes/pu-mlc/voc07.toml",
        (4e-5, 1.2e-4, 4e-4),
        (
            "train.epochs=10",
            "train.schedule_epochs=14",
            "train.warmup=3",
            "train.freeze=6",  # what a ResNet's last stage is: all that follows the last halving of the map trains
            "method.params.lgconv=false",
            "model.head=linear",
            "model.head_params={}",
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


def published_rows(score: Callable[[Row], float | None]) -> Iterator[Row]:
    """The grid as far as it can be told: the factor at the middle rate, then the rates, then more seeds."""
    for name, (recipe, choice, scaled) in PUBLISHED.items():

        def row(rate: float, factor: int, seeds: int, name=name, recipe=recipe, scaled=scaled) -> Row:
            settings = (*SAME, *scaled, f"train.lr={rate:g}", f"train.head_lr={factor}")
            return Row("published", f"{name}, lr {rate:g}, head ×{factor}", name, settings, seeds, recipe)

        factors = [row(choice[1], factor, 1) for factor in FACTORS]
        yield from factors
        scores = [score(one) for one in factors]
        if None in scores:
            continue
        factor = FACTORS[scores.index(max(scores))]  # type: ignore[type-var]
        rates = [row(rate, factor, 1) for rate in choice]
        yield from rates
        scores = [score(one) for one in rates]
        if None not in scores:
            yield row(choice[scores.index(max(scores))], factor, 3)  # type: ignore[type-var]


def ratio_rows() -> Iterator[Row]:
    for percent in (10, 50, 90):
        share = ("data.protocol=known-ratio", f"data.protocol_share={percent / 100}", "data.unlabelled=keep")
        share += ("data.protocol_seed=0",)
        for method in ("pu-mlc", "cls", "an", "bce"):
            ramp = ("method.params.ramp=1",) if method == "cls" else ()
            yield Row("ratios", f"{method}, {percent} % known", method, (*share, *ramp), seeds=1)
        # Present and absent ones are written alike, so that what is unknown says nothing: the rate 0.
        chance = ('method.params.loss_params={mechanism="rate", rate=0.0}',)
        yield Row("ratios", f"relabel, {percent} % known", "relabel", (*share, "model.head=linear", *chance), seeds=1)


LSE = ("model.head=lse",)
SYSTEMS = {  # name -> settings under the fair recipe
    "relabel": (),
    "all labels": ("data.protocol=complete",),
    "an": (),
    "gr": (),
    "pu-mlc": (),
    "em-apl": (),
    "cls": ("method.params.ramp=1",),
    "selection": (),
    "em": (),
}


def _method(name: str) -> str:
    return "bce" if name == "all labels" else name


def default_rows() -> Iterator[Row]:
    for name, settings in SYSTEMS.items():
        yield Row("default", f"{name}, lse", _method(name), (*settings, *LSE), views=True)
    yield Row("default", "lac, label-decoder", "lac", LAC, views=True)


def large_rows() -> Iterator[Row]:
    for name in ("relabel", "all labels", "an", "gr"):
        yield Row("large", f"{name}, lse", _method(name), (*SYSTEMS[name], *LSE, "data.size=320"), views=True)


def draw_rows() -> Iterator[Row]:
    draw = ("data.protocol_seed=1201",)
    for name in ("relabel", "gr", "pu-mlc", "em-apl", "an", "cls", "em", "selection"):
        yield Row("draw", f"{name}, lse", name, (*SYSTEMS[name], *LSE, *draw), views=True)
    yield Row("draw", "lac, label-decoder", "lac", (*LAC, *draw), views=True)


def mean_rows() -> Iterator[Row]:
    for name, settings in SYSTEMS.items():
        yield Row("mean", name, _method(name), (*settings, "model.head=linear"), views=True)


def share_rows() -> Iterator[Row]:
    for percent in (75, 50, 25):
        share = ("data.protocol=drop-positives", f"data.protocol_share={percent / 100}", "data.unlabelled=keep")
        share += ("data.protocol_seed=0", *LSE)
        learned = '{mechanism="rate", unlabelled="absent"}'
        given = f'{{mechanism="rate", rate={percent / 100}}}'
        for name, method, settings in (
            ("relabel", "relabel", ()),
            ("selection", "selection", ()),
            ("an", "an", ()),
            ("pu-mlc", "pu-mlc", ()),
            ("cls", "cls", ("method.params.ramp=1",)),
            ("relabel, rate given", "relabel", (f"method.params.loss_params={given}",)),
            ("selection, rate learned", "selection", (f"method.params={learned}",)),
            ("relabel, rate learned", "relabel", (f"method.params.loss_params={learned}",)),
        ):
            yield Row("shares", f"{name}, {percent} % left", method, (*share, *settings), seeds=1)


def pick_rows() -> Iterator[Row]:
    for pick in ("pick-area", "pick-largest", "pick-rarest"):
        for name in ("an", "em", "em-apl", "gr", "pu-mlc", "cls", "selection", "relabel"):
            settings = (*SYSTEMS[name], *LSE, f"data.protocol={pick}")
            yield Row("picks", f"{name}, {pick}", name, settings, seeds=1)
        yield Row("picks", f"lac, {pick}", "lac", (*LAC, f"data.protocol={pick}"), seeds=1)


CSRA, STRONG = "model.head=csra", "method.params.student=strong"
SOFT = "method.params.student_start=soft"
CHOSEN = (SOFT, "method.params.students=2", "select.images=true")  # by `train`, where norms keep their statistics
THREE = (SOFT, "method.params.students=3", "select.images=true")
AGAIN = "method.params.rounds=2"
IDEAS = {  # what is tried of relabel -> settings over those of LSE
    "csra": (CSRA,),
    "pair": ("method.params.pair=true",),
    "csra, pair": (CSRA, "method.params.pair=true"),
    "strong student": (STRONG,),
    "csra, strong student": (CSRA, STRONG),
    "strong crops": (f"{STRONG}-crop",),
    "csra, strong crops": (CSRA, f"{STRONG}-crop"),
    "5 folds": ("method.params.folds=5",),
    "refresh 0.1": ("method.params.refresh=0.1",),
    "r learned": ("model.head_params.r=learn",),
    "student from soft labels": (SOFT,),
    "2 students": (SOFT, "method.params.students=2"),
    "held-out images": (SOFT, "select.images=true"),
    "2 students, held-out images": CHOSEN,
    "2 students, held-out images, csra": (*CHOSEN, CSRA),
    "2 students, held-out images, 2 rounds": (*CHOSEN, AGAIN),
    "3 students, held-out images": THREE,
    "3 students, held-out images, 2 rounds": (*THREE, AGAIN),
    "2 students, held-out images, 3 rounds": (*CHOSEN, "method.params.rounds=3"),
    "2 students, held-out images, 2 rounds, 320 px": (*CHOSEN, AGAIN, "data.size=320"),
    "2 students, held-out images, 2 rounds, second draw": (*CHOSEN, AGAIN, "data.protocol_seed=1201"),
}


def idea_rows() -> Iterator[Row]:
    for idea, settings in IDEAS.items():
        seeds = 3 if "2 rounds" in idea else 1  # the nearest to full labels
        yield Row("ideas", f"relabel, {idea}", "relabel", (*LSE, *settings), seeds, views=True)
    for name in ("all labels", "selection"):  # to be compared with the same head
        yield Row("ideas", f"{name}, csra", _method(name), (*SYSTEMS[name], *LSE, CSRA), 1, views=True)


def start_rows() -> Iterator[Row]:
    for head in ("lse", "linear"):
        for name in ("relabel", "all labels", "selection", "gr", "pu-mlc"):
            bias = "log-odds" if head == "lse" or name == "gr" else "zero"
            settings = (*SYSTEMS[name], f"model.head={head}", f"method.start_bias={bias}")
            yield Row("start", f"{name}, {head}, from {bias}", _method(name), settings, views=True)


def kept_rows(rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    for row in rows():
        row = dataclasses.replace(row, group=f"kept-{row.group}", settings=(*row.settings, "train.freeze_bn=true"))
        name, comma, rest = row.name.partition(",")
        choosable = row.group in ("kept-default", "kept-draw", "kept-large", "kept-mean", "kept-shares", "kept-picks")
        if choosable and name in ("relabel", "all labels"):
            as_chosen = f"{name} as chosen{comma}{rest}"
            yield dataclasses.replace(row, name=as_chosen, method="relabel", settings=(*row.settings, *CHOSEN))
        if row.method == "relabel":  # as all was measured before `train` chose others
            first = ("method.params.student_start=head", "method.params.students=1", "select.images=false")
            stated = {setting.partition("=")[0] for setting in row.settings}
            more = tuple(setting for setting in first if setting.partition("=")[0] not in stated)
            row = dataclasses.replace(row, settings=(*row.settings, *more))
        yield row


def decoder_rows() -> Iterator[Row]:
    stages = ("train.epochs=5", "method.params.warmup=5")
    for rate, factor in ((1e-4, 1), (3e-5, 10), (1e-4, 3)):
        rates = ("model.head=label-decoder", f"train.lr={rate:g}", f"train.head_lr={factor}")
        rows: dict[str, tuple[str, ...]] = {"an": (), "lac": stages}
        if factor != 3:  # without contrast there is one stage
            plain = ("method.params.lambda_lac=0",)
            less = {"lac without contrast": plain, "lac without both": (*plain, "method.params.lambda_plc=0")}
            rows |= less | {f"{name}, 5 epochs": (*stages, *settings) for name, settings in less.items()}
        for name, settings in rows.items():
            yield Row("decoder", f"{name}, lr {rate:g}, head ×{factor}", name.split()[0], (*rates, *settings), seeds=2)


class Bench:
    """The runs of some groups: which are wanted, which are there, and the file that keeps them."""

    def __init__(
        self, out: Path, groups: list[str], only: list[str], settings: list[str], file: Path | None, most_seeds: int
    ) -> None:
        self.out, self.only, self.settings, self.file = out, only, settings, file
        self.groups = {name: int(seeds or most_seeds) for name, _, seeds in (group.partition(":") for group in groups)}
        self.failed: list[tuple[str, int]] = []
        self.known: dict[str, Any] = {}
        if file is not None and file.exists():
            self.known = {f"{r['group']}: {r['name']}": r for r in json.loads(file.read_text())["rows"]}

    def rows(self) -> list[Row]:
        made: dict[str, Callable[[], Iterator[Row]]] = {
            "fair": fair_rows,
            "comparators": comparator_rows,
            "published": lambda: published_rows(self.score),
            "ratios": ratio_rows,
            "default": default_rows,
            "large": large_rows,
            "draw": draw_rows,
            "mean": mean_rows,
            "shares": share_rows,
            "picks": pick_rows,
            "ideas": idea_rows,
            "start": start_rows,
            "decoder": decoder_rows,
        }
        for name in ("fair", "ratios", "default", "large", "draw", "mean", "shares", "picks", "ideas", "start"):
            made[f"kept-{name}"] = partial(kept_rows, made[name])
        every = {row.key: row for group in self.groups for row in made[group]()}  # a later entry has more seeds
        named = {key: {row.method, row.name, *row.name.split(", ")} for key, row in every.items()}
        return [row for key, row in every.items() if not self.only or named[key] & {*self.only}]

    def runs(self, row: Row) -> dict[int, dict[str, Any]]:
        """By seed: the runs of this very recipe that the file holds, its own before others', and those made here."""
        wanted, needed = row.recipe_hash(self.settings), {f"{views} mAP" for views in MORE_VIEWS if row.views}
        others = [run for line in self.known.values() for run in line["runs"] if run["recipe"] == wanted]
        own = [run for run in self.known.get(row.key, {}).get("runs", []) if run["recipe"] == wanted]
        runs = {run["seed"]: run for run in (*others, *own) if needed <= run.keys()}
        for seed in range(row.seeds):
            folder = self.folder(row, seed)
            looked = folder / VIEWS_FILE
            if (folder / "model.json").exists() and (looked.exists() or not row.views):
                runs[seed] = _run(json.loads((folder / "model.json").read_text())["body"]["meta"], seed, wanted)
                runs[seed] |= json.loads(looked.read_text()) if looked.exists() else {}
        return runs

    def score(self, row: Row) -> float | None:
        """Best mAP on validation of seed 0; a run that failed, as at a rate where it diverges, is the worst."""
        if (row.key, 0) in self.failed:
            return -1.0
        run = self.runs(row).get(0)
        return None if run is None else float(run["validation mAP"])

    def folder(self, row: Row, seed: int) -> Path:
        plain = "".join(c if c.isalnum() or c in "+-." else "-" for c in row.key)
        return self.out / f"{plain}-{row.recipe_hash(self.settings)[:8]}-{seed}"

    def command(self, row: Row, seed: int, images: str) -> list[str]:
        words = ["--recipe", row.recipe, "--images", images, "--method", row.method, "--seed", str(seed)]
        for setting in (*row.settings, *self.settings):
            words += ["--set", setting]
        return ["train", *words, "--out", str(self.folder(row, seed))]

    def next(self, busy: Container[tuple[str, int]]) -> tuple[Row, int] | None:
        """Within a group seed by seed, so that every method has one before any has three."""
        every = self.rows()
        for group, most_seeds in self.groups.items():
            for seed in range(most_seeds):
                for row in every:
                    wanted = row.group == group and seed < row.seeds and (row.key, seed) not in busy
                    if wanted and seed not in self.runs(row):
                        return row, seed
        return None

    def lines(self) -> dict[str, dict[str, Any]]:
        return {row.key: _line(row, runs) for row in self.rows() if (runs := self.runs(row))}

    def write(self) -> None:
        self.known |= self.lines()
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"rows": list(self.known.values())}, indent=1) + "\n")
        temporary.replace(self.file)


def main(images: str, jobs: int, limit: float, compare: str, first: str, **options: Any) -> None:
    if compare or not images:
        print(leads(options["file"], compare, first) if compare else markdown(options["file"]))
        return
    bench = Bench(**options)
    bench.out.mkdir(parents=True, exist_ok=True)
    running: dict[Future[int], tuple[str, int, float]] = {}
    start = time.monotonic()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        while True:
            while len(running) < jobs and time.monotonic() - start < limit:
                job = bench.next([*bench.failed, *((key, seed) for key, seed, _ in running.values())])
                if job is None:
                    break
                row, seed = job
                words = bench.command(row, seed, images)
                task = pool.submit(_train, words, bench.folder(row, seed), row.views)
                running[task] = (row.key, seed, time.monotonic())
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                key, seed, since = running.pop(done)
                bench.failed += [(key, seed)] if done.result() else []
                now = time.monotonic()
                place = f"{key}, seed {seed}"
                print(f"{now - start:6.0f} s  {place}: exit {done.result()}, {now - since:.0f} s", flush=True)
            bench.write()
    bench.write()
    for key, line in bench.lines().items():
        print(f"{key:45} {line['seeds']} seeds  mAP {line['mAP']}  CF1 {line['CF1']}  OF1 {line['OF1']}")
    if bench.failed:
        sys.exit(f"failed, see their logs in {bench.out}: {bench.failed}")


def markdown(file: Path, base: str = "fair: an") -> str:
    """The table of a results file: mean ± standard deviation, and the difference to `an` over the seeds of both."""
    rows = {f"{row['group']}: {row['name']}": row for row in json.loads(file.read_text())["rows"]}
    compared = {run["seed"]: run["mAP"] for run in rows[base]["runs"]}
    lines = ["| row | seeds | mAP | over `an` | CF1 | OF1 | seconds |", "|---|---|---|---|---|---|---|"]
    for key, row in rows.items():
        gains = [run["mAP"] - compared[run["seed"]] for run in row["runs"] if run["seed"] in compared]
        shown = (("mAP", 2), ("CF1", 1), ("OF1", 1), ("seconds", 0))
        cells = [_text(_over(row["runs"], name), digits) for name, digits in shown]
        spread = f" ± {statistics.stdev(gains):.2f}" if len(gains) > 1 else ""
        gain = f"{statistics.mean(gains):+.2f}{spread}" if gains and key != base else ""
        lines.append(f"| {key} | {row['seeds']} | {cells[0]} | {gain} | {' | '.join(cells[1:])} |")
    return "\n".join(lines)


def leads(file: Path, group: str, first: str = "relabel") -> str:
    """The table of a group by kinds of views, and how far one row is ahead: mean and 95 % t-interval over the seeds."""
    from pluralis.bench.statistics import paired_difference

    kinds = ("mAP", *(f"{views} mAP" for views in MORE_VIEWS))
    rows = [row for row in json.loads(file.read_text())["rows"] if row["group"] == group and kinds[-1] in row]
    mine = next((row for row in rows if row["name"].partition(",")[0] == first), None)
    if mine is None:
        sys.exit(f"--compare {group}: {file} has no run of `{first}` in it with many views; run --groups {group} first")
    title = " | ".join(("fast", *MORE_VIEWS))
    lines = [f"| row | seeds | {title} | seconds |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = [_text(_over(row["runs"], kind), 2) for kind in kinds] + [_text(_over(row["runs"], "seconds"), 0)]
        lines.append(f"| {row['name']} | {row['seeds']} | {' | '.join(cells)} |")
    lines += ["", f"| `{first}` over | {title} |", "|---|---|---|---|"]
    for row in rows:
        if row is mine:
            continue
        cells = ""
        for kind in kinds:
            ours, theirs = ({(0, run["seed"]): run[kind] for run in one["runs"]} for one in (mine, row))
            lead = paired_difference(ours, theirs)
            assert lead is not None
            interval = "" if lead.low is None else f" [{lead.low:+.2f}, {lead.high:+.2f}]"
            cells += f" {lead.mean:+.2f}{interval} |"
        lines.append(f"| {row['name']} |{cells}")
    return "\n".join(lines)


def _over(runs: Iterable[dict[str, Any]], key: str) -> dict[str, float | None]:
    """Not rounded, as what a row of the file holds is."""
    values = [run[key] for run in runs]
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}


def _text(figure: dict[str, float | None], digits: int) -> str:
    spread = "" if figure["sd"] is None else f" ± {figure['sd']:.{digits}f}"
    return f"{figure['mean']:.{digits}f}{spread}"


def _train(words: list[str], folder: Path, views: bool) -> int:
    """One `pluralis` command in this process, which has the GPU ready; all that it says goes to a file."""
    import torch

    from pluralis.cli import main as pluralis

    with open(f"{folder}.log", "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["pluralis", *words]
    try:
        try:
            pluralis()
        except SystemExit as end:
            if end.code:
                return int(end.code)
        if views:
            _look(folder)
    except Exception:  # what another run of the queue need not care about
        traceback.print_exc()
        return 1
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return 0


def _look(folder: Path) -> None:
    """Figures of a finished run on its test set with many views."""
    import torch

    from pluralis.data.source import load_split
    from pluralis.evaluate import evaluate
    from pluralis.runtime import Runtime
    from pluralis.trained_run import load_run, make_loader

    run = load_run(folder)
    test = load_split(run.recipe.data, run.recipe.select).test
    assert test is not None
    device = next(run.method.parameters()).device
    data = make_loader(test, run.recipe, device, cache=run.recipe.run.cache)
    figures = {}
    with torch.no_grad(), Runtime(device, run.recipe.run.precision).autocast():
        for views in MORE_VIEWS:
            found = evaluate(run.method, data, run.calibration_of(views), views=views)
            figures |= {f"{views} {key}": found[key] for key in ("mAP", "CF1", "OF1")}
    temporary = folder / f".{VIEWS_FILE}"
    temporary.write_text(json.dumps(figures))
    temporary.replace(folder / VIEWS_FILE)


def _run(meta: dict[str, Any], seed: int, recipe: str) -> dict[str, Any]:
    import torch

    figures = {k: v for k, v in meta["test"].items() if k.endswith(("mAP", "CF1", "OF1"))}
    chosen = meta["history"][meta["chosen"]]
    if "val mAP" in chosen:
        figures["validation mAP"] = chosen["val mAP"]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    facts = {"recipe": recipe, "pluralis": meta["pluralis"], "torch": torch.__version__, "device": device}
    facts["date"] = datetime.date.today().isoformat()
    return {"seed": seed, **figures, "seconds": meta["seconds"], "epoch": meta["chosen"] + 1, **facts}


def _line(row: Row, runs: dict[int, dict[str, Any]]) -> dict[str, Any]:
    line: dict[str, Any] = dataclasses.asdict(row) | {"seeds": len(runs)}
    more = [f"{views} mAP" for views in MORE_VIEWS if row.views]
    for key in ("mAP", "CF1", "OF1", "seconds", *more):
        line[key] = {name: None if x is None else round(x, 2) for name, x in _over(runs.values(), key).items()}
    return {**line, "runs": [runs[seed] for seed in sorted(runs)]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", default="", help="the VOC2012 folder; without it the table of --json is printed")
    parser.add_argument("--out", type=Path, default=Path("runs/voc2012"))
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--groups",
        nargs="+",
        default=["fair", "comparators", "published", "ratios"],
        metavar="GROUP[:SEEDS]",
        help="in this order, with at most so many seeds",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], help="rows of these methods, of this name or with such a part of it, alone"
    )
    parser.add_argument("--set", action="append", default=[], dest="settings", help="over every recipe")
    parser.add_argument("--json", type=Path, default=None, dest="file", help="results, read and added to")
    parser.add_argument("--seeds", type=int, default=3, dest="most_seeds", help="at most so many for now")
    parser.add_argument("--compare", default="", metavar="GROUP", help="show the leads of --first in a group of --json")
    parser.add_argument("--first", default="relabel", metavar="ROW", help="of --compare, its name up to the comma")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start nothing new after so many seconds")
    main(**vars(parser.parse_args()))
