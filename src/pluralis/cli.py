"""The `pluralis` command. Heavy imports happen inside commands, so that `--help` answers at once."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pluralis.bench_cli import bench, bench_run
from pluralis.cli_options import (
    Device,
    Force,
    Format,
    Images,
    LabelFile,
    Out,
    Settings,
    Unlisted,
    ViewsOption,
    named_data,
    views_line,
)
from pluralis.data_cli import data_app
from pluralis.errors import DataError, Interrupted, PluralisError, RecipeError, visible
from pluralis.missing_cli import count, relabel
from pluralis.recommend_cli import recommend

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn all the labels of an image from the few that somebody wrote down.",
)


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(help="How often each method is trained.", min=1)] = 2,
) -> None:
    """Train seven methods, and one that sees all labels, on scenes of handwritten digits and write report.html."""
    from pluralis.demo import run_demo

    run_demo(out, seeds)


@app.command()
def train(
    out: Out,
    recipe: Annotated[Path | None, typer.Option(help="TOML file; what it leaves out has defaults.")] = None,
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    method: Annotated[str, typer.Option(help="See `pluralis methods`; by default the best known.")] = "",
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="Train the head alone, on stored features.")] = False,
    tune: Annotated[bool, typer.Option("--tune", help="First try learning rates, epochs, a frozen backbone.")] = False,
    tune_minutes: Annotated[float | None, typer.Option(min=0, help="Time for what --tune tries; 60.")] = None,
    set: Settings = None,
) -> None:
    """Train on your own images, or go on with a run that was interrupted."""
    from pluralis.config import AUTO, Recipe

    given: dict[str, Any] = named_data(images, labels, format, unlisted)
    if method:
        given["method.name"] = method
    if frozen:
        given |= {"train.freeze": -1, "train.augment": "none", "run.cache": "features"}
    plan = Recipe.load(recipe, set or [], given if seed is None else {**given, "run.seed": seed})
    if tune_minutes is not None and not tune:
        raise RecipeError("--tune-minutes says how long settings are tried: add --tune, or leave it out")

    from pluralis.console import console, figures_table, rates_table, say, stage_text, training_hooks
    from pluralis.counting import WEAK
    from pluralis.methods import method_class
    from pluralis.methods.start import bias_words
    from pluralis.reported_rate import reported_rate
    from pluralis.run import train as train_run
    from pluralis.runtime import choose_device
    from pluralis.views import VIEWS

    if plan.method.name != AUTO:
        method_class(plan.method.name)  # a wrong name shows before the data is read
    trains_all = plan.train.freeze >= 0 and plan.run.cache != "features"
    new = not (out / "model.json").exists()
    if trains_all and new and not tune and choose_device(plan.run.device).type == "cpu":
        say("the whole network is trained, on the CPU: --frozen trains its head alone, which is much faster")
    with training_hooks("training" if plan.method.name == AUTO else plan.method.name) as hooks:
        if tune:
            from pluralis.tune import tune as choose

            plan = choose(plan, out, 60.0 if tune_minutes is None else tune_minutes, hooks).recipe
        run = train_run(plan, out, hooks, views=list(VIEWS))
    plan = run.recipe  # with what was left open
    chosen = run.history[run.chosen]
    stage = stage_text(chosen["stage"], int(run.history[-1]["stage"]) + 1)
    bias = bias_words(run.method.start_bias, run.method.start_rate)
    say(f"rule: {run.rule}; chosen: {stage}epoch {int(chosen['epoch'])}; starting bias: {bias}")
    if "score" in chosen and run.chosen == len(run.history) - 1:
        longer = f"--set train.epochs={2 * plan.train.epochs} and a new --out"
        say(f"the last epoch was the best: more may help ({longer})")
    if (rate := reported_rate(run.method, run.calibration, chosen)) is not None:
        for line in (rate.words(), *rate.warnings()):
            say(line)
        if rate.by_class:
            console.print(rates_table(run.classes, rate.by_class))
    if run.weak:
        say(f"warning: {WEAK} Train it in another way (`pluralis recommend` and --tune try some), or on more images.")
    if run.test:
        console.print(figures_table("test set, views fast", {plan.method.name: run.test}))
    say(f"model: {out / 'model.safetensors'}")
    if plan.data.format != "scenes":
        words = ["pluralis", "relabel", str(out), "--out", "missing.csv", "--html", "missing.html"]
        say(f"next: `{shlex.join(words)}` lists and shows missing labels")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    threshold: Annotated[float, typer.Option(min=0, max=1, help="For CF1 and OF1.")] = 0.5,
    variant: Annotated[str, typer.Option(help="released: classes without positives count as 0.")] = "paper",
    views: ViewsOption = "fast",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = "auto",
    set: Settings = None,
) -> None:
    """mAP, CF1 and OF1 of a finished run on labelled data (by default the test set of its recipe)."""
    from dataclasses import replace

    from pluralis.console import console, figures_table, prediction_bar, say
    from pluralis.data.source import load_source, other_data, without_hints
    from pluralis.trained_run import load_run
    from pluralis.views import get_views

    looks = get_views(views)
    trained = load_run(run, device)
    given = named_data(images, labels, format, unlisted)
    for setting in set or []:
        if not setting.startswith("data.") or setting.startswith(("data.size", "data.store_size")):
            raise RecipeError(f"--set {setting}: evaluate takes settings of the data only; the rest is the run's own")
    part = trained.recipe.data
    if not given and not set and not part.test:
        raise RecipeError(f"{run} has no test set in its recipe: name labelled data with --images and --labels")
    # What is named on the command line lies over the test set's own settings, such as its split.
    own = {**part.test, "test": {}, **({"format": format} if format else {})}
    tested = replace(trained.recipe, data=other_data(part, own))
    part = tested.with_settings(set or [], given).data
    if part.format == "csv":  # the file may list them in another order, or lack some
        part = replace(part, options={"classes": list(trained.classes), **part.options})
    source = load_source(without_hints(part), say)
    known = source.labels.summary()
    if not known.negatives.any() and known.unknown.any():
        raise DataError(
            "no label of this data is known to be absent, so nothing can be measured: write absent labels as -1, or,"
            " if whatever is not listed is absent, add --unlisted absent"
        )
    if not as_json:
        say(views_line(trained, views))
    with prediction_bar() as progress:
        figures = trained.evaluate(source, threshold, progress, variant, views)
    if as_json:
        finite = {key: value if math.isfinite(value) else None for key, value in figures.items()}
        how = {"rule": trained.rule, "threshold": threshold, "variant": variant, "views": views, "passes": looks.passes}
        print(json.dumps({**how, **finite}))
        return
    title = f"threshold {threshold:g}; views {views}; weights chosen by {trained.rule}"
    console.print(figures_table(title, {run.name: figures}))


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of them.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .json.")] = Path("predictions.csv"),
    threshold: Annotated[float, typer.Option(help="Least probability of a label.")] = 0.5,
    top_k: Annotated[int, typer.Option(help="Instead: this many labels an image.")] = 0,
    views: ViewsOption = "fast",
    device: Device = "auto",
    leave_out: Annotated[Path | None, typer.Option(help="CSV list of images to leave out, as `check` writes.")] = None,
    force: Force = False,
) -> None:
    """Labels and their probabilities for images, as CSV or JSON."""
    from pluralis.console import prediction_bar, say
    from pluralis.counting import WEAK
    from pluralis.data.images import ImageFiles
    from pluralis.predictions import check_choice, check_out, chosen_labels, find_images, write_predictions
    from pluralis.trained_run import load_run
    from pluralis.views import get_views

    get_views(views)  # a wrong name shows before any work
    check_out(out, force)
    files, names = find_images(images, leave_out)
    trained = load_run(run, device)
    check_choice(len(trained.classes), threshold, top_k)
    say(views_line(trained, views))
    with prediction_bar() as progress:
        found = trained.probabilities(ImageFiles(files), progress, views)
    rows = chosen_labels(found, trained.classes, threshold, top_k)
    write_predictions(out, names, rows)
    if trained.weak:
        say(f"warning: {WEAK} Do not rely on its labels.")
    kind = "calibrated" if trained.rule.startswith("observed") else "not calibrated"
    total = f"{sum(map(len, rows))} labels for {len(names)} images: {out}"
    say(f"{total} (probabilities {kind}, weights chosen by {trained.rule})")


@app.command()
def features(
    recipe: Annotated[Path | None, typer.Option(help="TOML file: the data and the model of a run.")] = None,
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    backbone: Annotated[str, typer.Option(help="As in a recipe, such as efficientnet_lite0 or resnet50.")] = "",
    size: Annotated[int | None, typer.Option(help="Side of the squares that the network sees.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write one table: OUT.safetensors and OUT.json.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of what was computed before; a default is there.")] = None,
    device: Device = "auto",
    set: Settings = None,
) -> None:
    """Compute the pooled features of images once; what was computed before is found again."""
    from pluralis.config import Recipe

    named = {"data.images": images, "data.labels": labels, "data.format": format, "model.backbone": backbone}
    given: dict[str, Any] = {key: value for key, value in named.items() if value}
    plan = Recipe.load(recipe, set or [], given if size is None else {**given, "data.size": size})

    from pluralis.console import prediction_bar, say
    from pluralis.defaults import settle
    from pluralis.features import FeatureCache, default_cache, feature_network, list_pictures, write_features
    from pluralis.runtime import Runtime, choose_device

    names, pictures = list_pictures(plan.data)
    plan, _ = settle(plan, pictures)
    net = feature_network(plan.model)
    runtime = Runtime(choose_device(device), plan.run.precision)
    runtime.lay_out(net)
    store = FeatureCache(cache or default_cache(), net, plan.data.size, plan.data.store_size, runtime)
    with prediction_bar("features") as progress:
        done = store.extract(pictures, plan.run.workers, progress)
    say(f"{len(names)} images, {done.found} of them found in the cache: {store.folder}")
    if out is not None:
        table = write_features(out, names, done.features, plan.model.backbone)
        say(f"{done.features.shape[0]} × {done.features.shape[1]} features: {table}")


@app.command()
def methods(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every method with its parameters, their defaults, and the paper."""
    from pluralis.methods import describe_methods

    found = describe_methods()
    if as_json:
        print(json.dumps(found, indent=1))
        return
    from rich.table import Table

    from pluralis.console import console

    table = Table("method", "parameters", "starting bias", "paper")
    for entry in found:
        parameters = ", ".join(f"{k}={v}" for k, v in entry["parameters"].items())
        deep = f"; {entry['deep_start_bias']} where the backbone learns" if entry["deep_start_bias"] else ""
        table.add_row(entry["name"], parameters, entry["start_bias"] + deep, entry["paper"])
    console.print(table)


app.command()(relabel)
app.command()(count)
app.add_typer(data_app, name="data")
app.command()(bench)
app.command("bench-run")(bench_run)
app.command()(recommend)


def main() -> None:
    """Run the command; what the user can put right becomes one line and exit code 2."""
    try:
        app()
    except (PluralisError, OSError) as error:
        print(f"error: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as stop:
        print(f"{stop}; run the same command to go on", file=sys.stderr)
        sys.exit(130)
