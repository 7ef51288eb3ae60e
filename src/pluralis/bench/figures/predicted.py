"""What takes a kept run's model, made once and kept beside it: predictions on its own training or test rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.stored import describe, kept, setting
from pluralis.errors import CheckpointError, DataError
from pluralis.params import choice

if TYPE_CHECKING:
    from torch import Tensor

    from pluralis.bench.store import Result
    from pluralis.data.loader import Loader
    from pluralis.data.source import Source, Split
    from pluralis.trained_run import TrainedRun

PARTS = ("train", "test")


@dataclass(frozen=True)
class Predictions:
    """p = σ(z) of every label, without a calibration; what training was told, and what is true. All [N, C]."""

    classes: tuple[str, ...]
    p: npt.NDArray[np.float64]
    given: npt.NDArray[np.int8]  # all 0 for test rows
    truth: npt.NDArray[np.int8]

    def of_class(self, name: str) -> Predictions:
        """One class alone; "" stands for all of them."""
        if not name:
            return self
        if name not in self.classes:
            raise DataError(f"there is no class {name!r}: it must be one of {', '.join(self.classes[:20])}")
        c = self.classes.index(name)
        return Predictions((name,), self.p[:, [c]], self.given[:, [c]], self.truth[:, [c]])


def predictions(run: Result, part: str = "train") -> Predictions:
    """What the run's chosen weights say about its own rows; the truth is that which the run's protocol hid."""
    import torch

    def make() -> dict[str, Tensor]:
        trained, split = load(run)
        source, truth = _rows(run, split, part)
        given = torch.from_numpy(source.labels.dense())
        return {
            "logits": logits(trained, trained.loader(source)),
            "given": given if part == "train" else torch.zeros_like(given),
            "truth": torch.from_numpy(truth),
        }

    found = once(run, choice("figure", "part", part, PARTS), make)
    p = found["logits"].double().sigmoid().numpy()
    return Predictions(tuple(run.classes), p, found["given"].numpy(), found["truth"].numpy())


def once(run: Result, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` gives, from a file beside the kept model if it was made before."""
    from pluralis.checkpoint import Snapshot, read_snapshot, write_snapshot

    folder = kept(run) / "figures"
    trained = read_snapshot(kept(run) / "model").meta["seconds"]  # no two trainings take the same time
    belongs = {"seconds": trained, "data": run.data_hash}
    try:
        found = read_snapshot(folder / name)
        if found.meta.get("belongs") == belongs:
            return found.tensors
    except CheckpointError:  # not made yet, or damaged: made from the model either way
        pass
    found = Snapshot(make(), {"belongs": belongs})
    folder.mkdir(exist_ok=True)
    write_snapshot(folder / name, found)
    return found.tensors


def load(run: Result) -> tuple[TrainedRun, Split]:
    """The model of a kept run and its data, which lie where the result says: the run may come from another machine."""
    from pluralis.data.source import load_split
    from pluralis.trained_run import load_run

    trained = load_run(kept(run))
    data = trained.recipe.data
    here = {key: setting(run, f"data.{key}", getattr(data, key)) for key in ("images", "labels", "test")}
    return trained, load_split(replace(data, **here), trained.recipe.select)


def logits(trained: TrainedRun, data: Loader) -> Tensor:
    """[N, C] on the CPU, at the precision that the run was trained with."""
    from pluralis.evaluate import predict
    from pluralis.runtime import Runtime

    device = next(trained.method.parameters()).device
    with Runtime(device, trained.recipe.run.precision).autocast():
        return predict(trained.method, data)


def _rows(run: Result, split: Split, part: str) -> tuple[Source, npt.NDArray[np.int8]]:
    if part == "test":
        if split.test is None:
            raise DataError(f'{describe(run)} has no test set: use part = "train"')
        return split.test, split.test.labels.dense()
    if split.truth is None:
        raise DataError(
            f"the truth about the training labels of {describe(run)} is not known, since no protocol hid any of them:"
            ' use part = "test"'
        )
    return split.train, split.truth.dense()
