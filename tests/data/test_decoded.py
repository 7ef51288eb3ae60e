"""Decoded pictures on disk: found again, noticed when anything changed, never half there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from pluralis.data import decoded
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Loader
from pluralis.errors import DataError
from pluralis.labels import Labels


@pytest.fixture
def images(tmp_path: Path) -> ImageFiles:
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for i, path in enumerate(paths):
        Image.new("RGB", (20, 30), (i * 40, 10, 200)).save(path)
    return ImageFiles(paths)


def loader(images: ImageFiles, folder: Path, decoding: list[int]) -> Loader:
    labels = Labels.from_lists([[0]] * len(images), 2)
    return Loader(
        images, labels, size=16, cache="ram", keep_in=str(folder), progress=lambda done, total: decoding.append(done)
    )


def pixels(data: Loader) -> torch.Tensor:
    return torch.cat([p for _, p in data.in_order(2)])


def test_the_second_loader_decodes_nothing(images: ImageFiles, tmp_path: Path) -> None:
    decoding: list[int] = []
    first = pixels(loader(images, tmp_path / "kept", decoding))
    assert decoding
    decoding.clear()
    again = loader(images, tmp_path / "kept", decoding)
    assert not decoding
    assert torch.equal(pixels(again), first)
    assert not list((tmp_path / "kept").glob(".*"))


def test_a_changed_image_or_another_size_is_decoded_anew(images: ImageFiles, tmp_path: Path) -> None:
    decoded.keep(tmp_path, images, torch.zeros(3, 3, 16, 16, dtype=torch.uint8))
    assert decoded.find(tmp_path, images, 16) is not None
    assert decoded.find(tmp_path, images, 17) is None
    os.utime(images.paths[1], (1, 1))
    assert decoded.find(tmp_path, images, 16) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_file_is_noticed_and_replaced(images: ImageFiles, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "kept"
    first = pixels(loader(images, folder, []))
    (path,) = folder.glob("*.npy")
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-7] ^= 4
    content = {"cut": content[:-50], "empty": bytearray(), "other": bytearray(b"hello")}.get(damage, content)
    path.write_bytes(bytes(content))
    assert torch.equal(pixels(loader(images, folder, [])), first)
    assert decoded.find(folder, images, 16) is not None
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written(images: ImageFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"run\.decoded"):
        loader(images, tmp_path / "file", [])
