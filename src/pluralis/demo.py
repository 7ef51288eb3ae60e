"""The main job on embedded data: one label an image, several methods, one report."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from pluralis.checkpoint import write_file
from pluralis.config import DataPart, MethodPart, ModelPart, Recipe, RunPart, SelectPart
from pluralis.console import console, say, training_hooks
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.protocols import single_positive
from pluralis.data.scenes import make_scenes, single_digits
from pluralis.engine import fit
from pluralis.labels import Labels
from pluralis.method import Setup
from pluralis.methods import create_method, start_heads
from pluralis.models import create_model
from pluralis.report import write_report
from pluralis.results import DemoResults, GalleryItem, MethodRuns, RunCurve, summary_table
from pluralis.run import train
from pluralis.seeding import derive
from pluralis.stage import Stage
from pluralis.trained_run import TrainedRun

SIZE = 48
METHODS = ("an", "em-apl", "gr", "cls", "lac", "pu-mlc", "relabel")
UPPER = "all labels"
SHOWN = ("an", "relabel", UPPER)  # what is found in the scenes of the gallery
# What takes unknown labels as absent starts from how often they were written: in five epochs a head that starts at 1/2
# would learn little else, most of all LAC's, whose decoder is new and not a linear layer.
_RARE = "method.start_bias=log-odds"
# What the papers set for tens of epochs, in proportion; LAC's stages share the epochs that the others have.
SETTINGS: dict[str, list[str]] = {
    "an": [_RARE],
    "em-apl": ["method.params.warmup=3"],
    "cls": ["method.params.ramp=1", _RARE],
    "lac": ["model.head=label-decoder", "model.head_params.dim=64", "method.params.warmup=2", "train.epochs=3", _RARE],
    # One view: the mirror image of a digit is none.
    "relabel": ["model.head=lse", "method.params.views=fast"],
    UPPER: ["model.head=lse"],  # with a weaker head than the others have it would bound nothing
}


DIGITS_FIRST = "training digit weights, once for this folder: about a minute"


@dataclass(frozen=True)
class DemoSize:
    """How much is drawn and trained: by default some four minutes on two cores."""

    digits: int = 6000
    digit_epochs: int = 7
    train: int = 1920
    test: int = 900
    epochs: int = 5
    gallery: int = 12


def run_demo(out: Path, seeds: int = 2, size: DemoSize | None = None) -> Path:
    """Train every method `seeds` times under `out`; what is finished is not repeated. Returns the report."""
    size = size or DemoSize()
    out.mkdir(parents=True, exist_ok=True)
    weights = pretrain(out, size)
    say("Scenes with about three digits each; training is told one of them.")
    rows: dict[str, list[TrainedRun]] = {}
    for name in (*METHODS, UPPER):
        for seed in range(seeds):
            recipe = demo_recipe(name, seed, weights, size)
            with training_hooks(f"{name}, seed {seed}", epochs_as_lines=False) as hooks:
                run = train(recipe, out / f"{name.replace(' ', '-')}-{seed}", hooks)
            rows.setdefault(name, []).append(run)
            say(f"{name}, seed {seed}: mAP {run.test['mAP']:.1f}")
    results = _results(rows, seeds, size)
    console.print(summary_table(results))
    say(f"weights chosen by {results.selection_rule}; {results.threshold_rule}")
    path = write_report(out / "report.html", results)
    say(f"report: {path}")
    return path


def demo_recipe(name: str, seed: int, weights: Path, size: DemoSize) -> Recipe:
    """One positive label an image for every method; the upper bound sees all labels."""
    upper = name == UPPER
    recipe = Recipe(
        data=DataPart(
            format="scenes",
            options={"split": "train", "count": size.train},
            protocol="complete" if upper else "single-positive",
            size=SIZE,
            test={"options": {"split": "test", "count": size.test}},
        ),
        model=ModelPart(backbone="tiny", weights=str(weights)),
        method=MethodPart(name="bce" if upper else name),
        # Norms learn what scenes are: statistics of single digits, unlike those of ImageNet for photos, do not fit.
        train=Stage(
            epochs=size.epochs, batch_size=32, lr=3e-4, head_lr=10, schedule="cosine", freeze_bn=False, augment="none"
        ),
        select=SelectPart(rule="observed", fraction=1 / 6),
        run=RunPart(seed=seed, watch_test=True, device="cpu"),
    )
    if size.epochs < DemoSize.epochs:  # a test's size: the proportions of five epochs do not fit
        return recipe.with_settings(s for s in SETTINGS.get(name, []) if s.startswith("model."))
    return recipe.with_settings(SETTINGS.get(name, []))


def pretrain(out: Path, size: DemoSize) -> Path:
    """Train the tiny backbone on single digits, as photo networks are on ImageNet, by the same loop."""
    path = out / "digits.safetensors"
    if path.exists():
        return path
    from safetensors.torch import save

    say(DIGITS_FIRST)
    images, digits = single_digits(size.digits, size=SIZE)
    truth = torch.nn.functional.one_hot(digits, 10)
    labels = Labels.from_dense(truth, convention="complete")
    torch.manual_seed(derive(0, "digits"))
    net = create_model("tiny", 10)
    method = create_method("bce", Setup(lambda: net, 10, labels))
    start_heads(method, labels, "log-odds")
    plan = Stage(epochs=size.digit_epochs, batch_size=32, lr=4e-3, head_lr=1, augment="none")
    with training_hooks("single digits", epochs_as_lines=False) as hooks:
        data = Loader(TensorImages(images), labels, size=SIZE)
        fit(method, data, plan, report=hooks.report, should_stop=hooks.should_stop, warn=hooks.say)
    write_file(path, save({k: v.contiguous() for k, v in net.backbone.state_dict().items()}))
    return path


def _results(rows: dict[str, list[TrainedRun]], seeds: int, size: DemoSize) -> DemoResults:
    methods = [MethodRuns(name, name, [_curve(r) for r in runs]) for name, runs in rows.items()]
    first = next(iter(rows.values()))[0]
    return DemoResults(
        title="Pluralis demo: all labels from one",
        methods=methods,
        upper=UPPER,
        gallery=_gallery({name: rows[name][0] for name in SHOWN}, size.gallery),
        selection_rule=first.rule,
        command=f"pluralis demo --seeds {seeds}",
        notes=["Probabilities are calibrated by two numbers fitted to the written labels of the held-out rows."],
        device=f"CPU, {torch.get_num_threads()} threads",
        threshold_rule="calibrated probability of at least 0.5, for every class",
        versions={"python": platform.python_version(), "torch": torch.__version__},
    )


def _curve(run: TrainedRun) -> RunCurve:
    epochs = [{"epoch": i + 1.0, "loss": e["loss"], "mAP": e["test mAP"]} for i, e in enumerate(run.history)]
    return RunCurve(run.recipe.run.seed, epochs, {k: run.test[k] for k in ("mAP", "CF1", "OF1")}, run.seconds)


def _gallery(runs: dict[str, TrainedRun], count: int) -> list[GalleryItem]:
    """Test scenes with the label that an annotator would have written, the truth, and what each run finds."""
    scenes = make_scenes("test", count, size=SIZE)
    labels = Labels.from_dense(scenes.truth, scenes.classes)
    given = single_positive(labels)
    found = {name: run.probabilities(TensorImages(scenes.images)) >= 0.5 for name, run in runs.items()}

    def names(numbers: Iterable[int]) -> list[str]:
        return [scenes.classes[c] for c in numbers]

    return [
        GalleryItem(
            scenes.images[row],
            names(given.positives(row))[0],
            names(labels.positives(row)),
            {name: names(f[row].nonzero().flatten().tolist()) for name, f in found.items()},
        )
        for row in range(count)
    ]
