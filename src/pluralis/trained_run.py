"""A finished run: its model, read back and ready to predict, and the data as its network sees it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pluralis.build import make_setup
from pluralis.calibration import Calibration
from pluralis.checkpoint import read_snapshot
from pluralis.config import Recipe
from pluralis.data.loader import Images, Loader, Progress
from pluralis.data.source import Source, check_classes
from pluralis.errors import CheckpointError
from pluralis.evaluate import measure, predict
from pluralis.features import FeatureCache, FeatureRows, default_cache, frozen_network
from pluralis.labels import Labels
from pluralis.method import Method
from pluralis.methods import create_method
from pluralis.runtime import Runtime, choose_device
from pluralis.views import Views, get_views, views_name


@dataclass(frozen=True)
class TrainedRun:
    """A finished run, ready to predict."""

    recipe: Recipe
    classes: tuple[str, ...]
    method: Method
    calibration: Calibration  # of the views `fast`
    rule: str
    history: list[dict[str, float]]
    chosen: int
    test: dict[str, float]
    seconds: float  # spent training
    resumed: bool = False  # it was finished before this call
    calibrations: dict[str, Calibration] = field(default_factory=dict)  # of other views, as far as `train` was asked
    per_class: dict[str, float | None] = field(default_factory=dict)  # average precision on the test set, in per cent
    weak: bool = False  # held-out rows say that it hardly tells images apart (`doubts.hardly_tells`)

    def loader(self, source: Source) -> Loader:
        """Data for this run's network; the classes must be the run's."""
        check_classes(source.labels, self.classes, "the data set")
        return make_loader(source, self.recipe, next(self.method.parameters()).device)

    def evaluate(
        self,
        source: Source,
        threshold: float = 0.5,
        progress: Progress | None = None,
        variant: str = "paper",
        views: str | Views = "fast",
    ) -> dict[str, float]:
        """Figures on labelled data; see `pluralis.evaluate.evaluate`."""
        logits = self.logits(source, progress, views)
        return measure(logits, torch.from_numpy(source.labels.dense()), self.calibration_of(views), threshold, variant)

    def probabilities(self, images: Images, progress: Progress | None = None, views: str | Views = "fast") -> Tensor:
        """Calibrated probabilities [N, C] of pictures without labels."""
        source = Source(images, Labels.from_lists([[]] * len(images), self.classes))
        with self._runtime().autocast():
            logits = predict(self.method, self.loader(source), progress=progress, views=views)
        return self.calibration_of(views).probabilities(logits)

    def logits(self, source: Source, progress: Progress | None = None, views: str | Views = "fast") -> Tensor:
        """Logits [N, C] of a data set, not calibrated.

        A run that was trained on stored features looks at a picture once by these: what is missing among them is
        computed and kept, as in training. Pictures are looked at themselves with other views, which features do not
        have, and where nothing can be kept, as on a machine that only predicts.
        """
        runtime, data = self._runtime(), self.loader(source)
        if self.recipe.run.cache == "features" and get_views(views) == get_views("fast"):
            features = feature_cache(self.method, self.recipe, runtime)
            if features.can_keep():
                data = feature_loader(source, self.recipe, features, progress)
        with runtime.autocast():
            return predict(self.method, data, progress=progress, views=views)

    def calibration_of(self, views: str | Views) -> Calibration:
        """The calibration that was fitted with these views; where there is none, that of `fast`."""
        return self.calibrations.get(views_name(views), self.calibration)

    def _runtime(self) -> Runtime:
        return Runtime(next(self.method.parameters()).device, self.recipe.run.precision)


def load_run(folder: Path, device: str = "auto", *, resumed: bool = False) -> TrainedRun:
    """The model of a finished run; the example of `train` reads one.

    >>> load_run(Path("no-such-run"))
    Traceback (most recent call last):
    pluralis.errors.CheckpointError: no-such-run holds no finished run: name the folder that was given as --out
    """
    if not (folder / "model.json").exists():
        started = (folder / "recipe.toml").exists()
        hint = "train on with the command that started it" if started else "name the folder that was given as --out"
        raise CheckpointError(f"{folder} holds no finished run: {hint}")
    snapshot = read_snapshot(folder / "model")
    if not {"recipe", "classes", "calibration"} <= snapshot.meta.keys():
        raise CheckpointError(f"{folder / 'model.json'} is not the model of a run: name the folder of a `train`")
    recipe = Recipe.from_dict(snapshot.meta["recipe"])
    method = create_method(
        recipe.method.name, make_setup(recipe, len(snapshot.meta["classes"]), weights=None), recipe.method.params
    )
    missing, unexpected = method.load_state_dict(snapshot.tensors, strict=False)
    if unexpected or [key for key in missing if not key.startswith(method.memory or ("\0",))]:
        raise CheckpointError(f"{folder / 'model.safetensors'} does not fit the network that its recipe describes")
    Runtime(choose_device(device)).place(method)
    method.eval()
    return trained_run(recipe, method, snapshot.meta, resumed)


def trained_run(recipe: Recipe, method: Method, meta: dict[str, Any], resumed: bool = False) -> TrainedRun:
    """From what is stored beside the weights."""
    method.start_bias = meta.get("start_bias", method.start_bias)
    return TrainedRun(
        recipe,
        tuple(meta["classes"]),
        method,
        Calibration.from_list(meta["calibration"]),
        meta["rule"],
        meta["history"],
        meta["chosen"],
        meta["test"],
        meta["seconds"],
        resumed,
        {name: Calibration.from_list(values) for name, values in meta.get("calibrations", {}).items()},
        meta.get("per class AP", {}),
        meta.get("weak", False),
    )


def make_loader(
    source: Source,
    recipe: Recipe,
    device: torch.device,
    progress: Progress | None = None,
    cache: str = "none",
    say: Callable[[str], None] = warnings.warn,
) -> Loader:
    return Loader(
        source.images,
        source.labels,
        size=recipe.data.size,
        store_size=recipe.data.store_size,
        cache=cache,
        keep_in=recipe.run.decoded,
        workers=recipe.run.workers,
        device=device,
        progress=progress,
        say=say,
    )


def feature_cache(method: Method, recipe: Recipe, runtime: Runtime) -> FeatureCache:
    """What serves the heads of a method whose backbone does not train."""
    net = frozen_network(method, recipe.train)
    runtime.place(method)
    folder = Path(recipe.run.features) if recipe.run.features else default_cache()
    return FeatureCache(folder, net, recipe.data.size, recipe.data.store_size, runtime)


def feature_loader(source: Source, recipe: Recipe, features: FeatureCache, progress: Progress | None) -> Loader:
    """The features of pictures in their place."""
    found = features.extract(source.images, recipe.run.workers, progress).features
    rows = Source(FeatureRows(found, source.images), source.labels)
    return make_loader(rows, recipe, features.runtime.device, cache="device")
