"""What a finished run says about the labels that nobody wrote down: of which rows, by what formula, into which file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pluralis.calibration import AT_RATES, how_written, likelihood_words, rate_given
from pluralis.counting import COLUMNS, FEW, WEAK, Counts, count_labels, everywhere
from pluralis.data.formats.csv import neutralise
from pluralis.data.loader import Progress
from pluralis.data.source import (
    Source,
    apply_protocol,
    check_classes,
    load_source,
    load_split,
    other_data,
    without_hints,
)
from pluralis.errors import DataError, RecipeError
from pluralis.guesses import read_soft_labels
from pluralis.labels import Labels
from pluralis.losses import selection_posterior
from pluralis.methods.relabel import Relabel
from pluralis.predictions import write_csv
from pluralis.trained_run import TrainedRun


@dataclass(frozen=True)
class Part:
    """Rows and the logits [N, C] that the network gives for them, not calibrated."""

    labels: Labels
    logits: Tensor


def own_rows(
    trained: TrainedRun, folder: Path, instead: str = "train again with a new --out"
) -> tuple[Source, Source | None]:
    """The rows that the run was trained on, and those that it held out, as the run saw them.

    `instead` is what else can be done where they are no longer as they were.
    """
    split = load_split(replace(trained.recipe.data, test={}), trained.recipe.select)
    then = f"put the labels back as they were when the run in {folder} was trained, or {instead}"
    check_classes(split.train.labels, trained.classes, "the data set", then)
    identity = folder / "data.json"
    if identity.exists() and json.loads(identity.read_text())["fingerprint"] != split.fingerprint():
        raise DataError(
            f"the labels or images changed since the run in {folder} was trained, so which rows it held out is not"
            f" known: put them back, or {instead}"
        )
    return split.train, split.held


def named_rows(trained: TrainedRun, values: Mapping[str, Any], settings: Iterable[str] = ()) -> Source:
    """Labelled data that the user names, over the data part of the run's recipe; its protocol holds here too."""
    for setting in settings:
        if not setting.startswith("data.") or setting.startswith(("data.size", "data.store_size", "data.test")):
            raise RecipeError(f"--set {setting}: only settings of the data can be given; the rest is the run's own")
    named = {"test": {}} | ({"format": values["data.format"]} if "data.format" in values else {})
    recipe = replace(trained.recipe, data=other_data(trained.recipe.data, named))
    part = recipe.with_settings(settings, values).data
    if part.format == "csv":  # the file may list them in another order, or lack some
        part = replace(part, options={"classes": list(trained.classes), **part.options})
    source = load_source(without_hints(part))
    return Source(source.images, apply_protocol(source.labels, part))


def look(trained: TrainedRun, source: Source, views: str = "fast", progress: Progress | None = None) -> Part:
    """Predict labelled rows with the run's network."""
    return Part(source.labels, trained.logits(source, progress, views))


def together(parts: Sequence[Part]) -> Part:
    """The rows of all parts, one part after the other."""
    ids = tuple(name for part in parts for name in part.labels.ids)
    dense = np.concatenate([part.labels.dense() for part in parts])
    labels = Labels.from_dense(dense, parts[0].labels.classes, ids)
    return Part(labels, torch.cat([part.logits for part in parts]))


def by_own_probabilities(trained: TrainedRun, views: str = "fast") -> bool:
    """Whether `chances` takes the run's probabilities as they are, and not calibrated."""
    own = bool(how_written(trained.method)) or isinstance(trained.method, Relabel)
    return own and trained.calibration_of(views).rates is None


def chances(trained: TrainedRun, part: Part, views: str = "fast") -> tuple[Tensor, str]:
    """[N, C] the chance of each label being present given those that were written, and what it rests on, in words.

    It is `selection_posterior`, of the run's own probabilities where its method is `selection` or `relabel` (a given
    rate included), and of calibrated ones for any other method. Where the calibration goes by rates of present and of
    absent labels, it is by these, for whatever method that was given no rate: one that was learned was fitted anew.
    """
    own, given = how_written(trained.method), torch.from_numpy(part.labels.dense())
    scale = trained.calibration_of(views)
    if by_own_probabilities(trained, views):
        found, what = selection_posterior(part.logits, given, **own), "the run's own probabilities"
        if trained.rule.startswith("observed"):
            what += " (those of `predict` are calibrated on held-out rows, so that they differ)"
    else:
        every = own.get("unlabelled") == "absent"
        found, what = scale.chances(part.logits, given, every), "probabilities that this run did not calibrate"
        if trained.rule.startswith("observed"):
            what = "calibrated probabilities" + (f" (as if {scale.by})" if scale.rates else "")
    return found, f"given the written labels, from {what}"


def doubts(trained: TrainedRun, held: Labels | None, views: str = "fast") -> list[str]:
    """What to know before relying on the chances, as sentences: by the rows that the run held out and chose by."""
    said = trained.calibration_of(views).warnings()
    if held is None or not trained.rule.startswith("observed"):
        return said
    labelled = int((np.diff(held.indptr) > 0).sum())
    if labelled < FEW and not by_own_probabilities(trained, views):
        said.append(f"The calibration rests on {labelled} rows only: hold out more to rely on the chances.")
    if trained.weak:
        said.append(f"{WEAK} Do not rely on the chances.")
    return said


def too_likely(rows: Labels, found: Tensor) -> list[str]:
    """Doubts about chances [N, C] of these rows by themselves, whatever they are from."""
    written = rows.summary().positives.astype(np.float64)
    return everywhere(rows.classes, written, found.sum(0, dtype=torch.float64).numpy(), len(rows))


def learned(trained: TrainedRun, folder: Path) -> tuple[Source, Tensor]:
    """The rows that the run was trained on, and what its last stage learned of each label [N, C]."""
    rows, _ = own_rows(trained, folder)
    return rows, read_soft_labels(folder, rows.labels)


def check_learned(views: str, named: bool) -> None:
    """What was learned is of the run's own rows, by the views of its training."""
    if named or views != "fast":
        raise RecipeError("--learned is about the rows trained on: leave out --views, --images, --labels and --set")


def count_missing(trained: TrainedRun, part: Part, held: Part | None, **options: Any) -> Counts:
    """`count_labels` of these rows, calibrated on the held-out ones, with labels written as the method has it.

    Where they are written at a rate, or with another `a`, the run's own probabilities are taken as they are. A rate
    that the run learned is fitted anew to the held-out rows, along with the calibration; without any it is as it was
    learned. Where enough labels are verified to be absent it is by two rates, as the calibration is, unless one was
    given.
    """
    how, given = {**how_written(trained.method), **options}, rate_given(trained.method)
    shown = torch.zeros(0, 1) if held is None else torch.from_numpy(held.labels.dense())
    fitted = likelihood_words(shown, given) == AT_RATES
    if fitted:
        how = {key: value for key, value in how.items() if key not in ("mechanism", "rate", "a")}
        how |= {"mechanism": "rate"} if given.get("learned") else {}
    picked = how.get("mechanism", "one") == "one" and how.get("a", 1.0) == 1.0
    pair = None if held is None or not (picked or fitted) else (held.logits, held.labels)
    counts = count_labels(part.logits, part.labels, pair, **how)
    if fitted or "learned" not in given:
        return counts
    return replace(counts, rate_error=trained.history[trained.chosen].get("rate error", math.nan))


def check_file(path: Path, force: bool, option: str = "--out", ending: str = ".csv") -> None:
    """Refuse a file that cannot be or that is there, before any work is done."""
    if path.suffix.lower() != ending:
        raise RecipeError(f"{option} is {path}; its name must end with {ending}")
    if path.exists() and not force:
        raise RecipeError(f"{path} is there already: name another file with {option}, or write over it with --force")


def write_counts(path: Path, counts: Counts) -> None:
    """The table by class and the line for all, as CSV."""
    write_csv(path, COLUMNS, ([neutralise(str(row["label"])), *list(row.values())[1:]] for row in counts.table(3)))
