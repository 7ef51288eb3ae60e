"""Pooled features of a frozen backbone: computed once for each picture, kept on disk, found again.

The cache has one folder for each backbone, its weights, the size of the pictures and the way of decoding them, and in
it blocks of rows. A row is addressed by what is in its picture, so another label file, a part of the pictures, some new
ones among them or another place on the disk all find what is there. Each block is written whole or not at all and is
read only if its hash is right; an extraction that was broken off goes on after the last block.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from pluralis.checkpoint import Snapshot, read_snapshot, state_hash, write_snapshot
from pluralis.config import DataPart, ModelPart
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Images, Loader, Progress, TensorImages
from pluralis.data.source import load_source, other_data, without_hints
from pluralis.errors import CheckpointError, DataError, RecipeError
from pluralis.labels import Labels
from pluralis.method import Method
from pluralis.models import create_model
from pluralis.models.heads import pool
from pluralis.models.network import Network
from pluralis.predictions import find_images
from pluralis.runtime import Runtime
from pluralis.stage import Stage

BLOCK = 1024  # rows that an interruption can cost
DECODING = 1  # to be raised with any change in what `data.images.decode` or `data.augment.resize` give
_BATCH = 32
_SUFFIXES = (".json", ".safetensors")


def default_cache() -> Path:
    """`$PLURALIS_CACHE/features`, or `~/.cache/pluralis/features`."""
    folder = os.environ.get("PLURALIS_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "pluralis") / "features"


@dataclass(frozen=True)
class Extracted:
    """Features [N, D] float32 of N pictures, of which `found` were in the cache already."""

    features: Tensor
    found: int


class FeatureRows(TensorImages):
    """Features [N, D] in place of pictures, under the names of the pictures."""

    def __init__(self, features: Tensor, images: Images) -> None:
        super().__init__(features)
        self._images = images

    def name(self, row: int) -> str:
        return self._images.name(row)

    def select(self, rows: np.ndarray) -> FeatureRows:
        return FeatureRows(self.pixels[torch.as_tensor(rows)], self._images.select(rows))

    def signature(self) -> bytes:
        return self._images.signature()


class FeatureCache:
    """The features that one network's backbone gives for pictures of one size.

    >>> from tempfile import TemporaryDirectory
    >>> from pluralis.models import create_model
    >>> images = TensorImages(torch.zeros(3, 3, 24, 24, dtype=torch.uint8))
    >>> with TemporaryDirectory() as folder:
    ...     cache = FeatureCache(Path(folder), create_model("tiny", 2), size=24)
    ...     first, second = cache.extract(images), cache.extract(images)
    >>> tuple(first.features.shape), first.found, second.found
    ((3, 96), 0, 3)
    """

    def __init__(
        self, root: Path, net: Network, size: int, store_size: int = 0, runtime: Runtime | None = None
    ) -> None:
        self.net, self.size, self.store_size = net, size, store_size or size
        self.runtime = runtime or Runtime(net.mean.device)
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", net.backbone.name)
        input_scale = {"input mean": net.mean, "input std": net.std} if net.normalize else {}
        weights = state_hash({**net.backbone.state_dict(), **input_scale})[:16]
        scale = f"{size}" if self.store_size == size else f"{self.store_size}to{size}"
        exact = "-bf16" if self.runtime.bf16 else ""
        self.folder = Path(root) / f"{name}-{weights}-{scale}{exact}-{_decoding()}"

    def extract(self, images: Images, workers: int = 0, progress: Progress | None = None) -> Extracted:
        """The features of every picture, in row order; what is missing is computed and kept."""
        keys = picture_keys(images, self.store_size)
        rows_of: dict[str, list[int]] = {}
        for row, key in enumerate(keys):
            rows_of.setdefault(key, []).append(row)
        out = torch.empty(len(keys), self.net.backbone.out_channels)
        for block in self._blocks():
            for key, vector in zip(block.meta["pictures"], block.tensors["features"], strict=True):
                if key in rows_of:
                    out[rows_of.pop(key)] = vector
            if not rows_of:
                break
        missing = [same[0] for same in rows_of.values()]
        found = len(keys) - sum(map(len, rows_of.values()))
        if missing:
            loader = Loader(
                images,
                Labels.from_lists([[]] * len(images), 1),
                size=self.size,
                store_size=self.store_size,
                workers=workers,
                device=self.runtime.device,
            )
            training = self.net.training
            self.net.eval()
            try:
                for start in range(0, len(missing), BLOCK):
                    rows = missing[start : start + BLOCK]

                    def report(done: int, start: int = start) -> None:
                        if progress is not None:
                            progress(start + done, len(missing))

                    features = self._compute(loader, rows, report)
                    for row, vector in zip(rows, features, strict=True):
                        out[rows_of[keys[row]]] = vector
                    self._write([keys[row] for row in rows], features)
            finally:
                self.net.train(training)
        return Extracted(out, found)

    def can_keep(self) -> bool:
        """Whether features can be written here, or in the folder that is to hold this one."""
        there = next(folder for folder in (self.folder, *self.folder.absolute().parents) if os.path.exists(folder))
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)

    @torch.no_grad()
    def _compute(self, loader: Loader, rows: list[int], report: Callable[[int], None]) -> Tensor:
        """Features [n, D] of some rows."""
        parts: list[Tensor] = []
        for _, pixels in loader.in_order(_BATCH, torch.tensor(rows)):
            # Twice as fast on a CPU as the default layout.
            pixels = pixels.contiguous(memory_format=torch.channels_last)
            with self.runtime.autocast():
                parts.append(pool(self.net.features(pixels)).float().cpu())
            report(min(len(parts) * _BATCH, len(rows)))
        features = torch.cat(parts)
        broken = (~torch.isfinite(features).all(1)).nonzero().flatten().tolist()
        if broken:
            raise DataError(
                f"backbone '{self.net.backbone.name}' gives NaN or infinite features for"
                f' {loader.images.name(rows[broken[0]])}: use other weights, or run.precision = "fp32"'
            )
        return features

    def _write(self, keys: list[str], features: Tensor) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256("".join(keys).encode()).hexdigest()[:16]
        write_snapshot(self.folder / name, Snapshot({"features": features}, {"pictures": keys}))

    def _blocks(self) -> Iterator[Snapshot]:
        """Every block that can be trusted; a damaged one is removed, one that cannot be read now is passed over."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                block = read_snapshot(path.with_suffix(""))
                shape = (len(block.meta["pictures"]), self.net.backbone.out_channels)
                if tuple(block.tensors["features"].shape) != shape:
                    raise CheckpointError(f"{path} does not fit its backbone")
            except (CheckpointError, KeyError, TypeError) as error:
                if not isinstance(error.__cause__, OSError):  # a disk that does not answer may do so again
                    for suffix in _SUFFIXES:
                        path.with_suffix(suffix).unlink(missing_ok=True)
                continue
            yield block


def _decoding() -> str:
    """How pictures become pixels: our way of it, and the libraries that do it."""
    versions = f"{DECODING}|{PIL.__version__}|{torch.__version__.split('+')[0]}"
    return f"d{DECODING}-{hashlib.sha256(versions.encode()).hexdigest()[:8]}"


def feature_network(model: ModelPart) -> Network:
    """The network whose backbone gives the features that a recipe's model asks for.

    Random weights are refused: no later call would have the same ones, and so none would find these features again.
    """
    if not model.weights:
        raise RecipeError(
            'model.weights is "", and features of random weights are of no use to any later run:'
            ' set model.weights = "imagenet", or name a file'
        )
    return create_model(model.backbone, 1, weights=model.weights, sha256=model.sha256 or None)


def list_pictures(part: DataPart) -> tuple[list[str], ImageFiles]:
    """Names and files of all pictures of a data set and its test set; without labels, of a whole folder."""
    if part.format == "csv" and not part.labels and part.images:
        files, names = find_images([Path(part.images)])
        return names, ImageFiles(files)
    sources = [load_source(part)]
    if part.test:
        sources.append(load_source(other_data(without_hints(part), {"test": {}, **part.test})))
    names, files = [], []
    for source in sources:
        if not isinstance(source.images, ImageFiles):
            raise DataError(f"format {part.format!r} has no image files to take features of: name some with --images")
        names += source.labels.ids
        files += source.images.paths
    return names, ImageFiles(files)


def picture_keys(images: Images, size: int) -> list[str]:
    """What is in each picture, as a hash: of the file as it is, or of the pixels at `size`."""
    if isinstance(images, ImageFiles):
        return [_file_key(path) for path in images.paths]
    return [state_hash({"": images.decode(row, size)})[:32] for row in range(len(images))]


def _file_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise DataError(f"cannot read the image {path}: {error.strerror or error}") from error


def frozen_network(method: Method, plan: Stage) -> Network:
    """The network whose features serve all networks of `method`; a `RecipeError` says why there is none."""
    why = 'run.cache = "features" trains heads on stored features'
    stages = method.stages(plan)
    for stage in stages:
        if stage.freeze >= 0:
            raise RecipeError(f"{why}, but train.freeze is {stage.freeze}: set train.freeze = -1, the whole backbone")
    changes = {view or stage.augment for stage in stages for view in method.views}
    if changes != {"none"}:
        raise RecipeError(
            f'{why}, but this method or recipe augments the pictures anew each time: set train.augment = "none"'
            " with a method of one view, or another run.cache"
        )
    nets = [net for _, net in method.networks()]
    if len({state_hash(net.backbone.state_dict()) for net in nets}) != 1:
        raise RecipeError(f"{why}, but the networks of this method start from different backbones: name model.weights")
    for net in nets:
        net.freeze("all")
        if any(parameter.requires_grad for _, parameter in net.backbone_parameters()):
            raise RecipeError(f"{why}, but this method trains parts inside of the backbone: use another run.cache")
    if not all(net.head.only_pools for net in nets):
        hint = 'use model.head = "linear" or "mlp", or another run.cache'
        raise RecipeError(f"{why}, but this head looks at the places of a feature map: {hint}")
    return nets[0]


def write_features(path: Path, names: Sequence[str], features: Tensor, backbone: str) -> Path:
    """One table of features with the name of each row: `path`.json and `path`.safetensors, which is returned.

    `path` may have either ending already.
    """
    path = _stem(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_snapshot(path, Snapshot({"features": features}, {"images": list(names), "backbone": backbone}))
    return path.with_name(f"{path.name}.safetensors")


def read_features(path: Path) -> tuple[list[str], Tensor]:
    """Names [N] and features [N, D] that `write_features` wrote."""
    table = read_snapshot(_stem(path))
    names, features = table.meta.get("images"), table.tensors.get("features")
    if not isinstance(names, list) or features is None or len(names) != len(features):
        raise CheckpointError(f"{path} is not a table of features: make it with `pluralis features --out`")
    return names, features


def _stem(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in _SUFFIXES else path
