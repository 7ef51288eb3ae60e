"""Decoded pictures kept on disk, so that the next run on the same files starts at once.

One file holds the squares of one list of images. Its name is a hash of what they were made from (path, size and time of
change of every file, and the side of the squares) and a checksum of what is inside, so that a changed image, a cut file
or a flipped bit is noticed and decoded anew. A file appears in one step: several processes may share the folder.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pluralis.data.images import ImageFiles
from pluralis.errors import DataError

_CHUNK = 2**24


def find(folder: Path, images: ImageFiles, size: int) -> Tensor | None:
    """The squares [N, 3, size, size] uint8, mapped from the disk, or None where they are not there or are damaged."""
    for path in folder.glob(f"{_key(images, size)}-????????.npy"):
        try:
            pixels = np.load(path, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            continue  # cut short, or not ours: it is decoded again and replaced
        if pixels.shape == (len(images), 3, size, size) and pixels.dtype == np.uint8 and _sum(pixels) == path.stem[-8:]:
            return torch.from_numpy(pixels)
    return None


def keep(folder: Path, images: ImageFiles, pixels: Tensor) -> None:
    """Write the squares for `find`."""
    array = pixels.numpy()
    key = _key(images, pixels.shape[-1])
    temporary = folder / f".{key}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        path = folder / f"{key}-{_sum(array)}.npy"
        os.replace(temporary, path)
        for damaged in set(folder.glob(f"{key}-*.npy")) - {path}:
            damaged.unlink(missing_ok=True)
    except OSError as error:
        if temporary.exists():
            temporary.unlink()
        raise DataError(
            f"cannot keep the decoded images in {folder}: {error.strerror or error}; make room, or set run.decoded"
            ' to another folder, or to "" to keep none'
        ) from error


def _key(images: ImageFiles, size: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    for path in images.paths:
        facts = path.stat()
        digest.update(f"\0{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _sum(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    value = 0
    for start in range(0, len(flat), _CHUNK):
        value = zlib.crc32(flat[start : start + _CHUNK].data, value)
    return f"{value:08x}"
