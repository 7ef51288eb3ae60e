"""The main job on embedded data: one label an image, several methods, one report."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import torch

from pluralis.checkpoint import write_file
from pluralis.config import DataPart, MethodPart, ModelPart, Recipe, RunPart, SelectPart
from pluralis.console import console, training_hooks
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.scenes import make_scenes, single_digits
from pluralis.data.source import load_source
from pluralis.engine import fit
from pluralis.labels import Labels
from pluralis.method import LossMethod
from pluralis.methods import create_loss
from pluralis.models import create_model
from pluralis.report import DemoResults, GalleryItem, MethodRuns, RunCurve, summary_table, write_report
from pluralis.run import TrainedRun, train
from pluralis.seeding import derive
from pluralis.stage import Stage

SIZE = 48
GALLERY = 12
METHODS = {"an": "assume negative", "em": "entropy maximisation", "gr": "generalized robust loss"}
UPPER = "all labels"


def run_demo(out: Path, seeds: int = 2) -> Path:
    """Train every method `seeds` times under `out`; what is finished is not repeated. Returns the report."""
    out.mkdir(parents=True, exist_ok=True)
    weights = pretrain(out)
    console.print("Scenes with about three digits each; training is told one of them.", highlight=False)
    rows: dict[str, list[TrainedRun]] = {}
    for name in (*METHODS, UPPER):
        for seed in range(seeds):
            recipe = demo_recipe(name, seed, weights)
            with training_hooks(f"{name}, seed {seed}", epochs_as_lines=False) as hooks:
                run = train(recipe, out / f"{name.replace(' ', '-')}-{seed}", hooks)
            rows.setdefault(name, []).append(run)
            console.print(f"{name}, seed {seed}: mAP {run.test['mAP']:.1f}", highlight=False)
    results = _results(rows, seeds)
    console.print(summary_table(results))
    path = write_report(out / "report.html", results)
    console.print(f"report: {path}", highlight=False)
    return path


def demo_recipe(name: str, seed: int, weights: Path) -> Recipe:
    """One positive label an image for every method; the upper bound sees all labels."""
    upper = name == UPPER
    return Recipe(
        data=DataPart(
            format="scenes",
            options={"split": "train", "count": 3600},
            protocol="complete" if upper else "single-positive",
            size=SIZE,
            test={"options": {"split": "test", "count": 1500}},
        ),
        model=ModelPart(backbone="tiny", weights=str(weights)),
        method=MethodPart(name="bce" if upper else name),
        train=Stage(epochs=6, batch_size=32, lr=3e-4, head_lr=10, schedule="cosine", augment="none"),
        select=SelectPart(rule="observed", fraction=1 / 6),
        run=RunPart(seed=seed, watch_test=True, device="cpu"),
    )


def pretrain(out: Path, count: int = 6000, epochs: int = 6) -> Path:
    """Train the tiny backbone on single digits, as photo networks are on ImageNet, by the same loop."""
    path = out / "digits.safetensors"
    if path.exists():
        return path
    from safetensors.torch import save

    images, digits = single_digits(count, size=SIZE)
    truth = torch.nn.functional.one_hot(digits, 10)
    data = Loader(TensorImages(images), Labels.from_dense(truth, convention="complete"), size=SIZE)
    torch.manual_seed(derive(0, "digits"))
    net = create_model("tiny", 10)
    plan = Stage(epochs=epochs, batch_size=64, lr=2e-3, head_lr=1, augment="none")
    with training_hooks("single digits", epochs_as_lines=False) as hooks:
        fit(LossMethod(net, create_loss("bce")), data, plan, report=hooks.report)
    write_file(path, save({k: v.contiguous() for k, v in net.backbone.state_dict().items()}))
    return path


def _results(rows: dict[str, list[TrainedRun]], seeds: int) -> DemoResults:
    methods = [
        MethodRuns(name, METHODS.get(name, "binary cross-entropy, every label known"), [_curve(r) for r in runs])
        for name, runs in rows.items()
    ]
    first = next(iter(rows.values()))[0]
    return DemoResults(
        title="Pluralis demo: all labels from one",
        methods=methods,
        upper=UPPER,
        gallery=_gallery({name: runs[0] for name, runs in rows.items()}),
        selection_rule=first.rule,
        command=f"pluralis demo --seeds {seeds}",
        notes=["Probabilities are calibrated by two numbers fitted to the written labels of the held-out rows."],
        device=f"CPU, {torch.get_num_threads()} threads",
        threshold_rule="calibrated probability of at least 0.5, for every class",
        versions={"python": platform.python_version(), "torch": torch.__version__},
    )


def _curve(run: TrainedRun) -> RunCurve:
    epochs = [{"epoch": e["epoch"], "loss": e["loss"], "mAP": e["test mAP"]} for e in run.history]
    return RunCurve(run.recipe.run.seed, epochs, {k: run.test[k] for k in ("mAP", "CF1", "OF1")}, run.seconds)


def _gallery(runs: dict[str, TrainedRun]) -> list[GalleryItem]:
    part = next(iter(runs.values())).recipe.data
    shown = replace(part, options={"split": "test", "count": GALLERY}, test={})
    source = load_source(shown)
    from pluralis.data.protocols import single_positive

    given = single_positive(source.labels)
    found = {name: run.probabilities(source.images) >= 0.5 for name, run in runs.items()}
    classes = source.labels.classes
    return [
        GalleryItem(
            make_scenes("test", GALLERY, size=SIZE).images[row],
            classes[int(given.positives(row)[0])],
            [classes[c] for c in source.labels.positives(row)],
            {name: [classes[c] for c in f[row].nonzero().flatten().tolist()] for name, f in found.items()},
        )
        for row in range(GALLERY)
    ]
