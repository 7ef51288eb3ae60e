"""Batches are a function of (seed, stage, epoch, row, view), whatever decodes and caches them."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pluralis.data.augment import AUGMENTS, COLUMNS, Augment, get_augment, resize
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Loader, TensorImages
from pluralis.data.scenes import make_scenes
from pluralis.errors import DataError, RecipeError
from pluralis.labels import Labels
from pluralis.method import Batch, Clock
from tests.toys import scenes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    folder = tmp_path_factory.mktemp("pictures")
    paths = []
    for row, pixels in enumerate(make_scenes("train", 11).images):
        paths.append(folder / f"{row}.png")
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(paths[-1])
    return ImageFiles(paths)


def labels(rows: int) -> Labels:
    return Labels.from_lists([[row % 4] for row in range(rows)], 4)


def epoch(loader: Loader, clock: Clock = Clock(), start: int = 0, views: tuple[str, ...] = ("crop",)) -> list[Batch]:  # noqa: B008
    return list(loader.batches(4, views, 7, clock, start))


def equal(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.index, y.index)
        and torch.equal(x.labels, y.labels)
        and all(torch.equal(v, w) for v, w in zip(x.views, y.views, strict=True))
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(("cache", "workers"), [("none", 2), ("ram", 0), ("ram", 2), ("device", 0)])
def test_workers_and_caches_change_nothing(files: ImageFiles, cache: str, workers: int) -> None:
    plain = Loader(files, labels(11), size=24, store_size=32)
    other = Loader(files, labels(11), size=24, store_size=32, cache=cache, workers=workers)
    assert equal(epoch(plain, views=("crop", "flip")), epoch(other, views=("crop", "flip")))


@pytest.mark.parametrize("views", [("crop", "strong"), ("multi-scale",), ("none",)])
def test_large_pictures_are_the_same_from_workers_and_from_here(tmp_path: Path, views: tuple[str, ...]) -> None:
    """Of more numbers than one thread takes at a time, and finished here with two threads, there with one."""
    random, paths = np.random.default_rng(0), []
    for row in range(5):
        paths.append(tmp_path / f"{row}.png")
        Image.fromarray(random.integers(0, 256, (230, 300, 3), np.uint8)).save(paths[-1])
    found, threads = [], torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for cache, workers in (("none", 0), ("none", 2), ("ram", 2)):
            loader = Loader(ImageFiles(paths), labels(5), size=224, store_size=240, cache=cache, workers=workers)
            found.append(epoch(loader, views=views))
            found[-1] += [Batch((pixels,), rows, rows) for rows, pixels in loader.in_order(2)]
            found[-1] += [Batch((pixels,), rows, rows) for rows, pixels in loader.stored(2, torch.tensor([3, 1, 4]))]
    finally:
        torch.set_num_threads(threads)
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])


def test_memory_of_batches_that_were_used_serves_again_and_of_those_that_are_kept_does_not() -> None:
    """Batches of 34 MiB, whose 8,800 pages the kernel would else clear for each; three are under way at a time."""
    pixels = torch.randint(0, 256, (600, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loader = Loader(TensorImages(pixels), labels(600), size=224)
    kept = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for batch in loader.batches(60, ["crop"], 0, Clock()):
        kept.append(batch.views[0][::29].clone())
        del batch
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 60_000
    for batch, rows in zip(list(loader.batches(60, ["crop"], 0, Clock())), kept, strict=True):
        assert torch.equal(batch.views[0][::29], rows)


class Threads(ImageFiles):
    """Pictures that show how many threads there were when they were decoded."""

    def decode(self, row: int, size: int) -> torch.Tensor:
        return torch.full((3, size, size), torch.get_num_threads(), dtype=torch.uint8)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_thread_makes_batches_and_those_of_the_caller_are_left_alone(workers: int) -> None:
    """More would wait for each other where workers have the cores; neither this thread nor a later one becomes so."""
    loader = Loader(Threads([Path("x")] * 11), labels(11), size=24, workers=workers)
    threads, seen = torch.get_num_threads(), []
    try:
        torch.set_num_threads(3)
        for batch in loader.batches(4, ["none"], 0, Clock()):
            assert (batch.views[0] == 1).all()
            seen.append(torch.get_num_threads())
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(torch.get_num_threads).result())
    finally:
        torch.set_num_threads(threads)
    assert seen == [3] * 6


def test_a_window_larger_than_the_stored_picture_is_refused_by_workers_too(files: ImageFiles) -> None:
    with pytest.raises(RecipeError, match=r"data\.store_size"):
        epoch(Loader(files, labels(11), size=24, store_size=16, workers=2), views=("window",))


def test_an_epoch_holds_every_row_once_with_its_own_label(files: ImageFiles) -> None:
    batches = epoch(Loader(files, labels(11), size=24))
    assert sorted(torch.cat([b.index for b in batches]).tolist()) == list(range(11))
    assert [len(b.index) for b in batches] == [4, 4, 3]
    for batch in batches:
        assert torch.equal(batch.labels, torch.from_numpy(labels(11).dense(batch.index.numpy())))
        assert batch.views[0].shape == (len(batch.index), 3, 24, 24)


def test_a_later_start_gives_the_rest_of_the_same_epoch() -> None:
    loader = scenes(11)
    assert equal(epoch(loader)[2:], epoch(loader, start=2))


def test_order_and_augmentation_depend_on_stage_epoch_view_and_seed() -> None:
    loader = scenes(11)
    first = epoch(loader)
    another_seed = list(loader.batches(4, ["crop"], 8, Clock()))
    for other in (epoch(loader, Clock(epoch=1)), epoch(loader, Clock(stage=1)), another_seed):
        assert not equal(first, other)
    two = epoch(loader, views=("crop", "crop"))
    assert torch.equal(two[0].views[0], first[0].views[0])
    assert not torch.equal(two[0].views[0], two[0].views[1])


def test_augmentation_belongs_to_the_row_not_to_the_batch() -> None:
    """The same row gets the same view when batches are cut differently."""
    loader = scenes(11)
    by_row = {}
    for size in (4, 5):
        for batch in loader.batches(size, ["crop"], 7, Clock()):
            for row, view in zip(batch.index.tolist(), batch.views[0], strict=True):
                torch.testing.assert_close(view, by_row.setdefault(row, view))


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_parts_are_loaders_of_their_own_that_decode_nothing_again(
    files: ImageFiles, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, decode, rows = 0, ImageFiles.decode, np.arange(3, 7)

    def counted(self: ImageFiles, row: int, size: int) -> torch.Tensor:
        nonlocal count
        count += 1
        return decode(self, row, size)

    labels = Labels.from_lists([[row % 3] for row in range(len(files))], 3)
    own = Labels.from_lists([[2], [1], [], [0]], 3)
    monkeypatch.setattr(ImageFiles, "decode", counted)
    whole = Loader(files, labels, size=16, cache=cache, keep_in=str(tmp_path))
    part, alone = whole.part(3, files.select(rows), own), Loader(files.select(rows), own, size=16)
    before = count
    for found, expected in zip(part.in_order(3), alone.in_order(3), strict=True):
        assert all(map(torch.equal, found, expected))
    assert count - before == (8 if cache == "none" else 4)  # those of `alone`
    found, expected = (list(one.batches(2, ["flip"], 0, Clock())) for one in (part, alone))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.views[0], theirs.views[0])
        assert torch.equal(ours.labels, theirs.labels)
    end = part.part(1, files.select(rows[1:]), own.select([1, 2, 3]))
    (_, last), (_, every) = (next(iter(one.in_order(9))) for one in (end, alone))
    assert torch.equal(last, every[1:])
    assert len(whole) == len(files)


def test_rows_come_in_order_for_prediction(files: ImageFiles) -> None:
    loader = Loader(files, labels(11), size=24, store_size=48)
    rows, pixels = zip(*loader.in_order(4), strict=True)
    assert torch.cat(rows).tolist() == list(range(11))
    expected = torch.stack([files.decode(row, 48) for row in range(11)])
    torch.testing.assert_close(torch.cat(pixels), resize(expected, 24))


def test_feature_vectors_pass_through_unchanged() -> None:
    features = torch.randn(6, 3)
    loader = Loader(TensorImages(features), labels(6), size=8)
    for batch in loader.batches(4, ["crop"], 0, Clock()):
        assert torch.equal(batch.views[0], features[batch.index])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_picture_is_named(files: ImageFiles, tmp_path: Path, workers: int) -> None:
    bad = tmp_path / "broken.jpg"
    bad.write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    loader = Loader(ImageFiles([*files.paths, bad]), labels(12), size=24, workers=workers)
    with pytest.raises(DataError, match=r"broken\.jpg"):
        list(loader.batches(4, ["none"], 0, Clock()))
    with pytest.raises(DataError, match=r"broken\.jpg"):
        Loader(ImageFiles([*files.paths, bad]), labels(12), size=24, cache="ram", workers=workers)


def test_a_single_row_at_the_end_joins_the_batch_before() -> None:
    loader = scenes(9)
    assert [len(b.index) for b in epoch(loader)] == [4, 5]
    assert loader.steps(4) == 2
    assert [len(b.index) for b in loader.batches(1, ["none"], 0, Clock())] == [1] * 9


def test_more_pictures_than_memory(files: ImageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pluralis.data.loader._free_memory", lambda: 1000)
    with pytest.raises(DataError, match=r"run\.cache"):
        Loader(files, labels(11), size=24, cache="ram")


def test_impossible_loaders() -> None:
    pixels = torch.zeros(0, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(DataError, match="empty"):
        Loader(TensorImages(pixels), Labels.from_lists([], 3), size=8)
    with pytest.raises(DataError, match="5 images but labels for 4"):
        Loader(TensorImages(torch.zeros(5, 3, 8, 8)), labels(4), size=8)
    with pytest.raises(RecipeError, match="none, ram, disk, device"):
        Loader(TensorImages(torch.zeros(4, 3, 8, 8)), labels(4), size=8, cache="tape")


def test_large_label_matrices_are_gathered_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = epoch(scenes(11))
    monkeypatch.setattr("pluralis.data.loader._DENSE_LABELS", 0)
    assert equal(dense, epoch(scenes(11)))


class TestAugment:
    pixels = make_scenes("train", 6).images

    def test_nothing_drawn_nothing_changed(self) -> None:
        assert torch.equal(AUGMENTS["none"](self.pixels, torch.rand(6, COLUMNS), 48), self.pixels)

    def test_flip_mirrors_exactly_the_drawn_rows(self) -> None:
        draws = torch.ones(6, COLUMNS)
        draws[2, 4] = 0.1
        out = AUGMENTS["flip"](self.pixels, draws, 48)
        assert torch.equal(out[2], self.pixels[2].flip(-1))
        assert torch.equal(out[[0, 1, 3, 4, 5]], self.pixels[[0, 1, 3, 4, 5]])

    def test_a_whole_crop_is_the_picture_and_its_mirror(self) -> None:
        draws = torch.full((6, COLUMNS), 0.5)
        draws[:, 0] = 1.0  # the whole area
        crop = Augment(area=0.4, flip=True)
        torch.testing.assert_close(crop(self.pixels, draws, 48), self.pixels.float(), rtol=0, atol=1e-2)
        draws[:, 4] = 0.0
        torch.testing.assert_close(crop(self.pixels, draws, 48), self.pixels.flip(-1).float(), rtol=0, atol=1e-2)

    def test_a_quarter_in_a_corner_is_that_quarter(self) -> None:
        draws = torch.full((6, COLUMNS), 0.5)
        draws[:, 0], draws[:, 2], draws[:, 3], draws[:, 4] = 0.0, 0.0, 1.0, 1.0  # smallest area, left, bottom
        out = Augment(area=0.25, flip=True)(self.pixels, draws, 24)
        torch.testing.assert_close(out, self.pixels[:, :, 24:, :24].float(), rtol=0, atol=1e-2)

    def test_crops_keep_to_area_and_aspect(self) -> None:
        """A picture whose pixels are their own coordinates tells what part was taken."""
        ramp = torch.arange(200.0)
        picture = torch.stack([ramp.expand(200, 200), ramp[:, None].expand(200, 200), torch.zeros(200, 200)])
        many = picture.expand(300, 3, 200, 200)
        out = Augment(area=0.4)(many, torch.rand(300, COLUMNS, generator=torch.Generator().manual_seed(0)), 32)
        width = (out[:, 0].amax((1, 2)) - out[:, 0].amin((1, 2))) / 200 * 32 / 31
        height = (out[:, 1].amax((1, 2)) - out[:, 1].amin((1, 2))) / 200 * 32 / 31
        area = width * height
        assert area.min() > 0.36
        assert area.max() <= 1.01
        assert (width / height).max() < 1.36
        assert (width / height).min() > 0.73
        assert area.std() > 0.1

    def test_colour_follows_its_formulas(self) -> None:
        draws = torch.rand(6, COLUMNS, generator=torch.Generator().manual_seed(1))
        out = Augment(jitter=0.2)(self.pixels, draws, 48)
        for row in range(6):
            x = self.pixels[row].double()
            b, c, s = (1 + 0.2 * (2 * draws[row, 5:8].double() - 1)).tolist()
            grey = 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]
            x = s * x + (1 - s) * grey
            x = c * x + (1 - c) * grey.mean()
            torch.testing.assert_close(out[row].double(), (b * x).clamp(0, 255), rtol=1e-4, atol=1e-2)

    @pytest.mark.parametrize("area", [1.0, 0.4])
    def test_the_stored_pictures_stay_as_they_are(self, area: float) -> None:
        for pixels in (self.pixels, self.pixels.float()):
            before = pixels.clone()
            Augment(jitter=0.2, area=area)(pixels, torch.rand(6, COLUMNS), 48)
            assert torch.equal(pixels, before)

    def test_unknown_name(self) -> None:
        with pytest.raises(RecipeError, match="none, flip, crop"):
            get_augment("cutmix")


def test_labels_are_never_changed_by_loading() -> None:
    loader = scenes(11)
    before = loader.labels.dense().copy()
    for batch in epoch(loader):
        batch.labels.fill_(1)
    assert np.array_equal(loader.labels.dense(), before)
    assert torch.equal(epoch(loader)[0].labels, torch.from_numpy(before[epoch(loader)[0].index.numpy()]))
