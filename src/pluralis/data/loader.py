"""Batches whose rows and augmentation are functions of (seed, stage, epoch, row, view).

Pictures are decoded to squares of `store_size` by worker processes, or once into RAM, into a file or
onto the accelerator. Augmentation runs on whole batches there, or, without an accelerator, in one
thread beside the network. So workers and caches change the speed and nothing else.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from pluralis import distributed
from pluralis.data import decoded
from pluralis.data.augment import get_augment, make_view, resize
from pluralis.data.reused import Reused
from pluralis.data.workers import make_ahead
from pluralis.errors import DataError, RecipeError
from pluralis.freed_memory import keep_smaller_blocks
from pluralis.labels import Labels
from pluralis.method import Batch, Clock
from pluralis.seeding import generator

CACHES = ("none", "ram", "disk", "device")
_DENSE_LABELS = 64 * 2**20  # entries up to which labels are kept as one dense tensor on the device
_PART = 64  # pictures that are decoded between two reports
Progress = Callable[[int, int], None]
T = TypeVar("T")
Tensors = tuple[Tensor, ...]
Finish = Callable[[Tensor, Tensor], Tensors]  # rows, stored pictures -> what the network sees of them


def _unchanged(index: Tensor, pixels: Tensor) -> Tensors:
    return (pixels,)


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
    """Pictures [N, 3, H, W] uint8, or feature vectors [N, D], that are in memory already.

    A network of your own may take pictures of other than three channels; augmentation by colour needs three.

    >>> images = TensorImages(torch.zeros(5, 3, 32, 48, dtype=torch.uint8))
    >>> len(images), images.sides(0)
    (5, (48, 32))
    """

    def __init__(self, pixels: Tensor) -> None:
        if not isinstance(pixels, Tensor):
            raise DataError(f"TensorImages takes a tensor, not {type(pixels).__name__}: use torch.as_tensor(images)")
        shape = tuple(pixels.shape)
        turned = len(shape) == 4 and shape[3] == 3 != shape[1]
        if len(shape) not in (2, 4) or turned:
            hint = ": colours come before height and width, use permute(0, 3, 1, 2)" if turned else ""
            raise DataError(f"TensorImages takes pictures [N, 3, H, W] or features [N, D], not {shape}{hint}")
        if len(shape) == 4 and pixels.dtype != torch.uint8 and not pixels.is_floating_point():
            raise DataError(f"TensorImages takes pictures of uint8, not {pixels.dtype}: use images.to(torch.uint8)")
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

    >>> images = TensorImages(torch.zeros(5, 3, 32, 32, dtype=torch.uint8))
    >>> data = Loader(images, Labels.from_lists([[0], [1], [1], [0], [1]], ["cat", "dog"]), size=32)
    >>> len(data), data.steps(batch_size=2)
    (5, 2)
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
        _check_parts(images, labels)
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
        self._first = 0  # row of these squares
        if cache != "none" and self._pixels is None:
            if isinstance(images, decoded.FromFiles) and (cache == "disk" or keep_in):
                folder = Path(keep_in) if keep_in else decoded.default_folder()
                self._squares = decoded.find_or_make(
                    folder, images, self._store_size, lambda: self._decode_all(progress), say
                )
            if cache != "disk":
                self._pixels = self._into_ram(progress)
                self._squares = None
        self._flat = self._pixels is not None and self._pixels.dim() == 2  # feature vectors, which stay as they are
        if cache == "device" and self._pixels is not None:
            self._pixels = self._pixels.to(self.device)
        self._dense = self._made_dense()

    def part(self, first: int, images: Images, labels: Labels) -> Loader:
        """The rows from `first` on, which are those of `images`, with labels of their own: nothing is decoded again."""
        part = copy.copy(self)
        part.images, part.labels, part._first = images, labels, self._first + first
        if self._pixels is not None:
            part._pixels = self._pixels[first : first + len(images)]
        part._dense = part._made_dense()
        return part

    def _made_dense(self) -> Tensor | None:
        if len(self.labels) * len(self.labels.classes) > _DENSE_LABELS:
            return None
        return torch.from_numpy(self.labels.dense()).to(self.device)

    def __len__(self) -> int:
        return len(self.images)

    def steps(self, batch_size: int, rows: Tensor | None = None) -> int:
        """Batches in an epoch of all rows, or of these; the last one may be smaller."""
        return len(_cut(torch.arange(len(self)) if rows is None else rows, batch_size))

    def batches(
        self,
        batch_size: int,
        augment: Sequence[str],
        seed: int,
        clock: Clock,
        start: int = 0,
        rows: Tensor | None = None,
    ) -> Iterator[Batch]:
        """The training batches of the clock's epoch from step `start` on, one view for each augmentation.

        All rows, or those of `rows`, once each.
        """
        count = len(self) if rows is None else len(rows)
        order = torch.randperm(count, generator=generator(seed, "order", clock.stage, clock.epoch))
        order = order if rows is None else rows[order]
        views = []
        for view, name in enumerate(augment):
            change, random = get_augment(name), generator(seed, "augment", clock.stage, clock.epoch, view)
            views.append((change, torch.rand((len(self), change.columns), generator=random).to(self.device)))

        memory = Reused()

        def finish(index: Tensor, pixels: Tensor) -> Tensors:
            if self._flat:
                return (pixels,) * len(views)
            return tuple(make_view(change, pixels, draws[index], self.size, memory.empty) for change, draws in views)

        shares = [self._share(rows) for rows in _cut(order, batch_size)[start:]]
        stream = self._stream([rows for rows, _ in shares], finish)
        for (rows, weight), (index, seen) in zip(shares, stream, strict=True):
            yield Batch(seen, self._labels_of(rows, index), index, weight)

    def in_order(self, batch_size: int, rows: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, pictures at `size`) without augmentation, in the order of `rows` (default: all)."""
        rows = torch.arange(len(self)) if rows is None else rows

        def finish(index: Tensor, pixels: Tensor) -> Tensors:
            return (pixels if self._flat else resize(pixels, self.size),)

        for index, (pixels,) in self._stream(list(rows.split(batch_size)), finish):
            yield index, pixels

    def stored(self, batch_size: int, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, pictures as they are stored), in the order of `rows`."""
        for index, (pixels,) in self._stream(list(rows.split(batch_size)), _unchanged):
            yield index, pixels

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

    def _stream(self, batches: list[Tensor], finish: Finish) -> Iterator[tuple[Tensor, Tensors]]:
        """(rows, finish(rows, pictures)), all on the device, for each batch of row numbers."""
        if not batches:
            return
        # One copy for all batches: a copy for each would hold up the device at every step.
        every = torch.cat(batches).to(self.device).split([len(rows) for rows in batches])
        here = self._pixels is not None and self._pixels.device == self.device
        if self._pixels is not None:
            pictures: Iterator[Tensor] = map(self._pixels.__getitem__, every if here else batches)
        elif self._squares is not None:
            pictures = map(self._squares.read, (rows + self._first for rows in batches))
        else:
            pictures = self._decoded(batches, self.device.type == "cuda")
        ready = zip(every, pictures, strict=True)
        if self.device.type == "cpu" and not self._flat:
            keep_smaller_blocks()
            yield from _ahead((index, finish(index, pixels)) for index, pixels in ready)
        else:
            for index, pixels in ready if here else _ahead(ready):
                yield index, finish(index, self._on_device(pixels))

    def _on_device(self, pixels: Tensor) -> Tensor:
        if self.device.type == "cuda" and not pixels.is_cuda:
            pixels = pixels.pin_memory()
        return pixels.to(self.device, non_blocking=True)

    def _decoded(self, batches: list[Tensor], pin: bool = False) -> Iterator[Tensor]:
        def decode(rows: Tensor) -> Tensor:
            return torch.stack([self.images.decode(row, self._store_size) for row in rows.tolist()])

        return make_ahead(decode, batches, self._workers, 3 * self._store_size**2 * max(map(len, batches)), pin)

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


def _check_parts(images: object, labels: object) -> None:
    if not all(hasattr(images, name) for name in ("__len__", "decode", "name")):
        raise DataError(
            f"Loader: images is an object of {type(images).__name__}, which decodes no pictures: give"
            " TensorImages(images) of a tensor [N, 3, H, W], pluralis.data.images.ImageFiles(paths), or an object"
            " with the methods of pluralis.data.loader.Images"
        )
    if not isinstance(labels, Labels):
        raise DataError(f"Loader: labels is an object of {type(labels).__name__}; give Labels.from_dense(labels)")


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same, of which a thread makes the next one ready while this one is used.

    It computes alone: more threads would wait for each other at every step where workers have the cores.
    """
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.get_num_threads).result()  # a thread that has not asked takes the number set last, later on
        pool.submit(torch.set_num_threads, 1).result()
        torch.set_num_threads(threads)  # for threads that come later
        coming = pool.submit(next, items, None)
        while (ready := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield ready


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
