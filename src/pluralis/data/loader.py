"""Batches whose rows and augmentation are functions of (seed, stage, epoch, row, view).

Pictures are decoded to squares of `store_size` by worker processes, or once into RAM, into a file or
onto the accelerator; augmentation then runs on whole batches where the network is. So workers and
caches change the speed and nothing else.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pluralis import distributed
from pluralis.data import decoded
from pluralis.data.augment import get_augment, resize
from pluralis.errors import DataError, RecipeError
from pluralis.labels import Labels
from pluralis.method import Batch, Clock
from pluralis.seeding import generator

CACHES = ("none", "ram", "disk", "device")
_DENSE_LABELS = 64 * 2**20  # entries up to which labels are kept as one dense tensor on the device
_PART = 64  # pictures that are decoded between two reports
Progress = Callable[[int, int], None]


class Images(Protocol):
    """Pictures by row number."""

    def __len__(self) -> int: ...
    def decode(self, row: int, size: int) -> Tensor:
        """uint8 [3, size, size]; a `DataError` names the file that cannot be decoded."""

    def sides(self, row: int) -> tuple[int, int]:
        """Width and height."""

    def name(self, row: int) -> str: ...
    def select(self, rows: np.ndarray) -> Images: ...
    def signature(self) -> bytes:
        """Changes when the pictures do, as far as that can be told without decoding them."""


class TensorImages:
    """Pictures [N, 3, H, W] uint8, or feature vectors [N, D], that are in memory already."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def decode(self, row: int, size: int) -> Tensor:
        return self.pixels[row]

    def sides(self, row: int) -> tuple[int, int]:
        height, width = self.pixels.shape[-2:]
        return width, height

    def name(self, row: int) -> str:
        return f"row {row}"

    def select(self, rows: np.ndarray) -> TensorImages:
        return TensorImages(self.pixels[torch.as_tensor(rows)])

    def signature(self) -> bytes:
        return repr((tuple(self.pixels.shape), float(self.pixels.sum(dtype=torch.float64)))).encode()


class Loader:
    """One set of pictures and labels, as training batches or in row order.

    `cache` is where decoded squares are kept: "none", "ram", "device", or "disk", which takes no memory. `keep_in` is
    the folder of those on disk; with it "ram" and "device" leave theirs there too, for the next run. `say` gets the
    lines about damaged files; without, they are warnings.
    """

    def __init__(
        self,
        images: Images,
        labels: Labels,
        *,
        size: int,
        store_size: int = 0,
        cache: str = "none",
        keep_in: str = "",
        workers: int = 0,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
        say: Callable[[str], None] = warnings.warn,
    ) -> None:
        if len(images) != len(labels):
            raise DataError(f"there are {len(images)} images but labels for {len(labels)} rows")
        if len(images) == 0:
            raise DataError("the data set is empty: there is no row to train on or to predict")
        if cache not in CACHES:
            raise RecipeError(f"run.cache is {cache!r}; it must be one of {', '.join(CACHES)}")
        self.images, self.labels, self.size = images, labels, size
        self.device = torch.empty(0, device=device).device  # with its number: "cuda" is not equal to "cuda:0"
        self._store_size = store_size or size
        self._workers = workers
        self._pixels: Tensor | None = images.pixels if isinstance(images, TensorImages) else None
        self._squares: decoded.Squares | None = None
        if cache != "none" and self._pixels is None:
            if isinstance(images, decoded.FromFiles) and (cache == "disk" or keep_in):
                folder = Path(keep_in) if keep_in else decoded.default_folder()
                self._squares = decoded.find_or_make(
                    folder, images, self._store_size, lambda: self._decode_all(progress), say
                )
            if cache != "disk":
                self._pixels = self._into_ram(progress)
                self._squares = None
        if cache == "device" and self._pixels is not None:
            self._pixels = self._pixels.to(self.device)
        dense = len(labels) * len(labels.classes) <= _DENSE_LABELS
        self._dense = torch.from_numpy(labels.dense()).to(self.device) if dense else None

    def __len__(self) -> int:
        return len(self.images)

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch; the last one may be smaller."""
        return len(_cut(torch.arange(len(self)), batch_size))

    def batches(
        self, batch_size: int, augment: Sequence[str], seed: int, clock: Clock, start: int = 0
    ) -> Iterator[Batch]:
        """The training batches of the clock's epoch from step `start` on, one view for each augmentation."""
        order = torch.randperm(len(self), generator=generator(seed, "order", clock.stage, clock.epoch))
        changes = [get_augment(name) for name in augment]
        views = [
            (
                change,
                torch.rand(
                    (len(self), change.columns),
                    generator=generator(seed, "augment", clock.stage, clock.epoch, view),
                ).to(self.device),
            )
            for view, change in enumerate(changes)
        ]
        batches = _cut(order, batch_size)[start:]
        shares = [self._share(rows) for rows in batches]
        stream = self._stream([rows for rows, _ in shares])
        for (rows, weight), (index, pixels) in zip(shares, stream, strict=True):
            flat = pixels.dim() == 2  # feature vectors are not augmented
            seen = tuple(pixels if flat else change(pixels, draws[index], self.size) for change, draws in views)
            yield Batch(seen, self._labels_of(rows, index), index, weight)

    def in_order(self, batch_size: int, rows: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, pictures at `size`) without augmentation, in the order of `rows` (default: all)."""
        rows = torch.arange(len(self)) if rows is None else rows
        for index, pixels in self._stream(list(rows.split(batch_size))):
            yield index, pixels if pixels.dim() == 2 else resize(pixels, self.size)

    def stored(self, batch_size: int, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, pictures as they are stored), in the order of `rows`."""
        return self._stream(list(rows.split(batch_size)))

    @staticmethod
    def _share(rows: Tensor) -> tuple[Tensor, float]:
        """This process's rows of a batch, and their weight; a process without rows takes one at weight 0."""
        world = distributed.world_size()
        if world == 1:
            return rows, 1.0
        mine = rows[distributed.rank() :: world]
        return (mine, len(mine) * world / len(rows)) if len(mine) else (rows[:1], 0.0)

    def _labels_of(self, rows: Tensor, index: Tensor) -> Tensor:
        if self._dense is not None:
            return self._dense[index]
        return torch.from_numpy(self.labels.dense(rows.numpy())).to(self.device, non_blocking=True)

    def _stream(self, batches: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, pictures), both on the device, for each batch of row numbers."""
        if not batches:
            return
        # One copy for all batches: a copy for each would hold up the device at every step.
        every = torch.cat(batches).to(self.device).split([len(rows) for rows in batches])
        pin = self.device.type == "cuda" and (self._pixels is None or self._pixels.device.type == "cpu")
        if self._squares is not None:
            for index, pixels in zip(every, _ahead(self._squares.read, batches), strict=True):
                yield index, (pixels.pin_memory() if pin else pixels).to(self.device, non_blocking=True)
        elif self._pixels is None:
            for index, pixels in zip(every, self._decoded(batches, pin), strict=True):
                yield index, pixels.to(self.device, non_blocking=True)
        elif self._pixels.device == self.device:
            for index in every:
                yield index, self._pixels[index]
        else:
            for index, rows in zip(every, batches, strict=True):
                pixels = self._pixels[rows]
                yield index, (pixels.pin_memory() if pin else pixels).to(self.device, non_blocking=True)

    def _decoded(self, batches: list[Tensor], pin: bool = False) -> Iterator[Tensor]:
        loader = DataLoader(
            _Decoder(self.images, self._store_size),
            batch_sampler=[rows.tolist() for rows in batches],
            num_workers=self._workers,
            collate_fn=_collate,
            pin_memory=pin,
            generator=torch.Generator(),  # leave the global generator alone
        )
        for pixels in loader:
            if isinstance(pixels, str):
                raise DataError(pixels)
            yield pixels

    def _into_ram(self, progress: Progress | None) -> Tensor:
        shape = (len(self), 3, self._store_size, self._store_size)
        needed, free = math.prod(shape), _free_memory()
        if needed > free:
            raise DataError(
                f"{len(self)} images of {self._store_size} px take {needed / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB"
                ' are free: set run.cache = "disk" or "none", or a smaller data.size'
            )
        pixels, done = torch.empty(shape, dtype=torch.uint8), 0
        parts = torch.arange(len(self)).split(_PART)
        for squares in self._decode_all(progress) if self._squares is None else map(self._squares.read, parts):
            pixels[done : done + len(squares)] = squares
            done += len(squares)
        return pixels

    def _decode_all(self, progress: Progress | None) -> Iterator[Tensor]:
        """The squares of all rows, in order."""
        done = 0
        for squares in self._decoded(list(torch.arange(len(self)).split(_PART))):
            yield squares
            done += len(squares)
            if progress is not None:
                progress(done, len(self))


def _ahead(read: Callable[[Tensor], Tensor], batches: list[Tensor]) -> Iterator[Tensor]:
    """read(batch) for each batch, of which the next is read while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(read, batches[0])
        for following in batches[1:]:
            ready, coming = coming, pool.submit(read, following)
            yield ready.result()
        yield coming.result()


def _free_memory() -> int:
    """Bytes of RAM that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cut(rows: Tensor, batch_size: int) -> list[Tensor]:
    """Batches of rows; a single row at the end joins the batch before, as batch norm cannot train on one."""
    batches = list(rows.split(batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1 < batch_size:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


class _Decoder(Dataset[Tensor | str]):
    """A picture, or the reason why it cannot be had: an exception would lose its type on the way."""

    def __init__(self, images: Images, size: int) -> None:
        self._images, self._size = images, size

    def __getitem__(self, row: int) -> Tensor | str:
        try:
            return self._images.decode(row, self._size)
        except DataError as error:
            return str(error)


def _collate(items: list[Tensor | str]) -> Tensor | str:
    for item in items:
        if isinstance(item, str):
            return item
    return torch.stack([item for item in items if isinstance(item, Tensor)])
