"""Decoded pictures on disk: found again, noticed when anything changed, never half there."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from pluralis.config import Recipe, changed_keys
from pluralis.data import decoded
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Loader
from pluralis.errors import DataError
from pluralis.labels import Labels
from pluralis.method import Clock

SIZE = 16
SQUARE = 3 * SIZE * SIZE


@pytest.fixture
def images(tmp_path: Path) -> ImageFiles:
    return make_images(tmp_path)


def make_images(folder: Path) -> ImageFiles:
    paths = [folder / f"{i}.png" for i in range(5)]
    for i, path in enumerate(paths):
        Image.new("RGB", (20, 30), (i * 40, 10, 200)).save(path)
    return ImageFiles(paths)


def kept(folder: Path) -> list[Path]:
    """What is in the folder, but for the notes of what image files hold."""
    return [path for path in folder.iterdir() if path.suffix != ".contents"]


class Watched:
    """A loader that keeps squares in `folder`, with what it decoded and said."""

    def __init__(self, images: ImageFiles, folder: Path, cache: str = "ram", size: int = SIZE) -> None:
        self.decoding: list[int] = []
        self.said: list[str] = []
        self.loader = Loader(
            images,
            Labels.from_lists([[0]] * len(images), 2),
            size=size,
            cache=cache,
            keep_in=str(folder),
            progress=lambda done, total: self.decoding.append(done),
            say=self.said.append,
        )

    def pixels(self) -> torch.Tensor:
        return torch.cat([p for _, p in self.loader.in_order(2)])


def expected(images: ImageFiles, size: int = SIZE) -> torch.Tensor:
    return torch.stack([images.decode(row, size) for row in range(len(images))]).float()


@pytest.mark.parametrize("cache", ["ram", "disk", "device"])
def test_the_second_loader_decodes_nothing(images: ImageFiles, tmp_path: Path, cache: str) -> None:
    first = Watched(images, tmp_path / "kept", cache)
    assert first.decoding == [5]
    again = Watched(images, tmp_path / "kept", cache)
    assert not again.decoding
    for each in (first, again):
        assert torch.equal(each.pixels().float(), expected(images))
        assert not each.said
    assert len(kept(tmp_path / "kept")) == 1


def test_disk_gives_the_batches_of_no_cache(images: ImageFiles, tmp_path: Path) -> None:
    plain = Loader(images, Labels.from_lists([[0]] * 5, 2), size=SIZE)
    stored = Watched(images, tmp_path / "kept", "disk").loader
    for a, b in zip(
        plain.batches(2, ["crop", "flip"], 7, Clock()), stored.batches(2, ["crop", "flip"], 7, Clock()), strict=True
    ):
        assert torch.equal(a.index, b.index)
        assert all(torch.equal(v, w) for v, w in zip(a.views, b.views, strict=True))


def test_disk_holds_no_picture_in_memory(images: ImageFiles, tmp_path: Path) -> None:
    """Rows that are not asked for are not read: their damage goes unnoticed."""
    Watched(images, tmp_path / "kept", "disk")
    damage(tmp_path / "kept", "flip", row=4)
    stored = Watched(images, tmp_path / "kept", "disk")
    list(stored.loader.in_order(2, torch.tensor([0, 3])))
    assert not stored.said
    list(stored.loader.in_order(2, torch.tensor([4])))
    assert len(stored.said) == 1


def test_a_changed_image_another_size_or_another_way_of_decoding(
    images: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    Watched(images, folder)
    assert Watched(images, folder, size=17).decoding
    Image.new("RGB", (20, 30), "white").save(images.paths[1])
    assert Watched(images, folder).decoding
    monkeypatch.setattr("pluralis.data.images.DECODING", 2)
    assert Watched(images, folder).decoding
    assert not Watched(images, folder).decoding
    assert len(kept(folder)) == 4


def damage(folder: Path, how: str, row: int = 2) -> None:
    (path,) = folder.glob("*.squares")
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[row * SQUARE + 7] ^= 4
    if how == "sums":
        content[5 * SQUARE + 1] ^= 1
    content = {
        "cut": content[:-50],
        "cut in the pictures": content[: SQUARE + 5],
        "longer": content + b"x",
        "empty": bytearray(),
        "other": bytearray(b"hello"),
        "zeros": bytearray(len(content)),
    }.get(how, content)
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("cache", ["ram", "disk"])
@pytest.mark.parametrize("how", ["flip", "sums", "cut", "cut in the pictures", "longer", "empty", "other", "zeros"])
def test_a_damaged_file_is_noticed_and_put_right(images: ImageFiles, tmp_path: Path, how: str, cache: str) -> None:
    folder = tmp_path / "kept"
    Watched(images, folder)
    (path,) = folder.glob("*.squares")
    whole = path.read_bytes()
    damage(folder, how)
    second = Watched(images, folder, cache)
    assert torch.equal(second.pixels().float(), expected(images))
    assert len(second.said) == 1
    assert "damaged" in second.said[0]
    assert bool(second.decoding) == (how != "flip")  # one damaged picture is mended alone
    assert path.read_bytes() == whole
    third = Watched(images, folder, cache)
    assert torch.equal(third.pixels().float(), expected(images))
    assert not third.said
    assert len(kept(folder)) == 1


def test_a_file_that_is_cut_while_it_is_read(images: ImageFiles, tmp_path: Path) -> None:
    stored = Watched(images, tmp_path / "kept", "disk")
    stored.pixels()
    (path,) = (tmp_path / "kept").glob("*.squares")
    os.truncate(path, SQUARE + 5)
    assert torch.equal(stored.pixels().float(), expected(images))


def test_a_picture_is_found_by_what_its_file_holds(tmp_path: Path) -> None:
    images, folder = ImageFiles([tmp_path / "x.bmp", tmp_path / "y.bmp"]), tmp_path / "kept"
    for path in images.paths:
        Image.new("RGB", (SIZE, SIZE), "red").save(path)
    Watched(images, folder)
    before = images.paths[1].stat()
    Image.new("RGB", (SIZE, SIZE), "blue").save(images.paths[1])
    os.utime(images.paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))  # of the old size, and said to be as old
    assert images.paths[1].stat().st_size == before.st_size
    painted = Watched(images, folder)
    assert painted.decoding
    assert torch.equal(painted.pixels().float(), expected(images))
    (tmp_path / "moved").mkdir()
    moved = ImageFiles([path.rename(tmp_path / "moved" / path.name) for path in images.paths])
    os.utime(moved.paths[0], (1, 1))
    again = Watched(moved, folder)
    assert not again.decoding
    assert torch.equal(again.pixels().float(), expected(moved))
    assert not Watched(moved.select([1, 0]), tmp_path / "other").said
    assert torch.equal(Watched(moved.select([1, 0]), folder).pixels().float(), expected(moved).flip(0))


def test_image_files_are_read_once_to_know_them(images: ImageFiles, tmp_path: Path) -> None:
    folder, read = tmp_path / "kept", list[int]()

    class Counted(ImageFiles):
        def digest(self, row: int) -> bytes:
            read.append(row)
            return super().digest(row)

    counted = Counted(images.paths)
    Watched(counted, folder)
    Watched(counted, folder)
    assert read == [0, 1, 2, 3, 4]
    (note,) = folder.glob("*.contents")
    for damaged in (b"", b"x" * 64, b"\xff" * 65):
        note.write_bytes(damaged)
        assert not Watched(counted, folder).decoding
    assert len(read) == 20


def test_an_image_that_changes_while_it_is_decoded(images: ImageFiles, tmp_path: Path) -> None:
    def decode() -> Iterator[torch.Tensor]:
        yield torch.stack([images.decode(row, SIZE) for row in range(5)])
        Image.new("RGB", (20, 30), "white").save(images.paths[2])

    with pytest.raises(DataError, match="changed while they were decoded"):
        decoded.find_or_make(tmp_path / "kept", images, SIZE, decode, lambda line: None)
    assert not kept(tmp_path / "kept")


def test_an_image_that_changed_after_it_was_decoded_is_not_mended_from(images: ImageFiles, tmp_path: Path) -> None:
    stored = Watched(images, tmp_path / "kept", "disk")
    damage(tmp_path / "kept", "flip")
    Image.new("RGB", (20, 30), "white").save(images.paths[2])
    with pytest.raises(DataError, match=r"2\.png.*has changed"):
        stored.pixels()


def test_an_interrupted_build_leaves_nothing_and_a_killed_one_is_written_over(
    images: ImageFiles, tmp_path: Path
) -> None:
    def broken() -> Iterator[torch.Tensor]:
        yield torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8)
        raise KeyboardInterrupt

    folder, said = tmp_path / "kept", list[str]()
    with pytest.raises(KeyboardInterrupt):
        decoded.find_or_make(folder, images, SIZE, broken, said.append)
    assert not kept(folder)
    Watched(images, folder)
    (path,) = kept(folder)
    path.rename(path.with_name(f".{path.name}.part"))  # as if killed just before it was renamed
    assert Watched(images, folder).decoding
    assert kept(folder) == [path]


def want(images: ImageFiles, folder: Path, together: Barrier, out: Queue[tuple[int, int]]) -> None:
    decoded_here = []

    def decode() -> Iterator[torch.Tensor]:
        for row in range(len(images)):
            time.sleep(0.02)
            decoded_here.append(row)
            yield images.decode(row, SIZE)[None]

    together.wait()
    found = decoded.find_or_make(folder, images, SIZE, decode, lambda line: None)
    out.put((len(decoded_here), int(found.read(torch.arange(5)).sum())))


def test_several_processes_decode_once(images: ImageFiles, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    together, out = fork.Barrier(4), fork.Queue()
    running = [fork.Process(target=want, args=(images, tmp_path / "kept", together, out)) for _ in range(4)]
    for process in running:
        process.start()
    found = [out.get(timeout=60) for _ in running]
    for process in running:
        process.join()
    total = int(expected(images).sum())
    assert sorted(found) == [(0, total), (0, total), (0, total), (5, total)]
    assert len(kept(tmp_path / "kept")) == 1


def test_many_that_come_at_the_same_moment(images: ImageFiles, tmp_path: Path) -> None:
    """Each that has waited makes, locks and removes the same file again, while another looks whether it is there."""
    squares = torch.zeros(len(images), 3, SIZE, SIZE, dtype=torch.uint8)

    def find(round: int) -> Path:
        return decoded.find_or_make(tmp_path / str(round), images, SIZE, lambda: [squares], lambda line: None).path

    with ThreadPoolExecutor(8) as pool:
        for round in range(60):
            assert len({*pool.map(find, [round] * 8)}) == 1
            assert len(kept(tmp_path / str(round))) == 1


def test_a_folder_that_cannot_be_written_or_is_too_small(
    images: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"run\.decoded"):
        Watched(images, tmp_path / "file")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=9))
    with pytest.raises(DataError, match=r"GiB are free in .*run\.cache"):
        Watched(images, tmp_path / "kept", "disk")
    assert not kept(tmp_path / "kept")


def test_disk_without_a_folder_uses_the_users_own_and_warns(
    images: ImageFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path / "cache"))
    labels = Labels.from_lists([[0]] * 5, 2)
    Loader(images, labels, size=SIZE, cache="disk")
    damage(tmp_path / "cache" / "decoded", "cut")
    with pytest.warns(UserWarning, match="damaged"):
        Loader(images, labels, size=SIZE, cache="disk")


def test_the_recipe_takes_it_and_results_do_not_depend_on_it() -> None:
    disk = Recipe.load(None, ["run.cache=disk"])
    assert disk.run.cache == "disk"
    assert not changed_keys(Recipe(), disk)
