"""Pixels where Pillow has them: the same ones, for as long as somebody looks."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pluralis.data.pillow_pixels import quads

IN_PIECES = (2100, 2100)  # more than 16 MiB: Pillow keeps it in several


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (3, 7), (375, 500), (1, 5000), (5000, 1), IN_PIECES])
def test_the_pixels_of_the_image(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    found = quads(Image.fromarray(pixels))
    assert found.shape == (*shape, 4)
    assert found.is_contiguous()
    assert np.array_equal(found[..., :3].numpy(), pixels)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_no_pixels(shape: tuple[int, int]) -> None:
    assert quads(Image.new("RGB", shape[::-1])).shape == (*shape, 4)


def test_rows_with_gaps_between_them() -> None:
    """As somebody may ask Pillow for; it then refuses to show its memory."""
    core = Image.core
    if not hasattr(core, "set_alignment"):
        pytest.skip("this Pillow has no alignment")
    before = core.get_alignment()
    core.set_alignment(64)
    try:
        for width in (7, 16, 100):
            pixels = np.random.default_rng(0).integers(0, 256, (5, width, 3), np.uint8)
            assert np.array_equal(quads(Image.fromarray(pixels))[..., :3].numpy(), pixels)
    finally:
        core.set_alignment(before)


def test_memory_of_another_length_than_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Pillow before 13 shows rows with gaps: nothing is read there."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    image, padded = Image.fromarray(pixels), Image.new("RGB", (16, 5))
    shown = padded.__arrow_c_array__()
    monkeypatch.setattr(image, "__arrow_c_array__", lambda: shown, raising=False)
    assert np.array_equal(quads(image)[..., :3].numpy(), pixels)


def test_an_image_that_was_cropped_turned_or_converted() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 31, 3), np.uint8))
    for made in (image.crop((3, 4, 20, 33)), image.transpose(Image.Transpose.ROTATE_90), image.convert("L")):
        assert np.array_equal(quads(made.convert("RGB"))[..., :3].numpy(), np.asarray(made.convert("RGB")))


def test_nothing_is_copied_where_pixels_lie_in_one_piece() -> None:
    image = Image.new("RGB", (50, 40))
    assert quads(image).data_ptr() == quads(image).data_ptr()
    many = [quads(image) for _ in range(3)]
    image.putpixel((7, 5), (1, 2, 3))
    assert [found[5, 7, :3].tolist() for found in many] == [[1, 2, 3]] * 3


def test_pixels_outlive_the_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 100, 3), np.uint8)
    view = quads(Image.fromarray(pixels))[10:, :, :3]
    gc.collect()
    others = [Image.new("RGB", (100, 120), (number,) * 3) for number in range(50)]
    assert np.array_equal(view.numpy(), pixels[10:])
    del others


def test_no_memory_is_lost() -> None:
    script = """
import resource
from PIL import Image
from pluralis.data.pillow_pixels import quads
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
quads(Image.new("RGB", (500, 500)))
before = peak()
for _ in range(300):
    quads(Image.new("RGB", (500, 500)))  # 1 MB
print(peak() - before)
"""
    grown = int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    assert grown < 30_000  # kB


def test_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    for size in ((30, 20), IN_PIECES):
        torch.nn.functional.interpolate(quads(Image.new("RGB", size))[None].permute(0, 3, 1, 2), size=(5, 5))
    assert not recwarn.list
