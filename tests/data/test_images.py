"""Decoding: every kind of pixels becomes the same red, green and blue."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from pluralis.data.images import ImageFiles, decode
from pluralis.data.safe_io import FORMATS, open_image
from pluralis.errors import DataError


def gradient(height=60, width=90):
    """Smooth colours, so that compression and resampling leave little trace."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return np.stack([255 * x, 255 * y, 128 + 0 * x], -1).round().astype(np.uint8)


def float_squash(pixels, size):
    """The definition: antialiased bilinear resampling in floating point."""
    x = torch.from_numpy(pixels.astype(np.float64)).permute(2, 0, 1)[None]
    return F.interpolate(x, (size, size), mode="bilinear", antialias=True)[0]


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (31, 31), (1, 200), (200, 1), (1, 1)])
@pytest.mark.parametrize("size", [1, 31, 64])
def test_squash_is_antialiased_bilinear(tmp_path, shape, size):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    out = decode(tmp_path / "x.png", size)
    assert (out.shape, out.dtype) == ((3, size, size), torch.uint8)
    assert out.is_contiguous()
    assert (out - float_squash(pixels, size)).abs().max() <= 1.01


def test_an_image_of_the_right_size_is_left_alone(tmp_path):
    pixels = gradient(32, 32)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert torch.equal(decode(tmp_path / "x.png", 32), torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize(
    ("mode", "format", "tolerance"),
    [("RGB", "PNG", 1), ("RGBA", "PNG", 1), ("CMYK", "TIFF", 2), ("CMYK", "JPEG", 12), ("YCbCr", "JPEG", 12)],
)
def test_colour_modes(tmp_path, mode, format, tolerance):
    pixels = gradient()
    Image.fromarray(pixels).convert(mode).save(tmp_path / "x", format)
    assert (decode(tmp_path / "x", 30) - float_squash(pixels, 30)).abs().max() <= tolerance


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_palette(tmp_path, format):
    quantised = Image.fromarray(gradient()).quantize(64)
    quantised.save(tmp_path / "x", format)
    expected = float_squash(np.asarray(quantised.convert("RGB")), 30)
    assert (decode(tmp_path / "x", 30) - expected).abs().max() <= 1.01


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_grey_of_1_8_and_16_bits(tmp_path, format):
    grey = gradient()[..., 0]
    expected = float_squash(np.repeat(grey[..., None], 3, -1), 30)
    Image.fromarray(grey).save(tmp_path / "8", format)
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "16", format)
    for name in ("8", "16"):
        assert (decode(tmp_path / name, 30) - expected).abs().max() <= 1.01
    Image.fromarray(grey > 127).save(tmp_path / "1", format)
    assert set(decode(tmp_path / "1", 90).unique().tolist()) >= {0, 255}


def test_transparency_lies_on_white(tmp_path):
    clear_red = np.zeros((8, 8, 4), np.uint8)
    clear_red[..., 0] = 255
    clear_red[:4, :, 3] = 255  # the upper half is solid
    Image.fromarray(clear_red).save(tmp_path / "rgba.png")
    Image.fromarray(clear_red).save(tmp_path / "rgba.webp", lossless=True)
    palette = Image.fromarray(np.repeat(np.array([[0], [1]], np.uint8), 8, 1).repeat(4, 0), "P")
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.save(tmp_path / "p.png", transparency=1)
    palette.save(tmp_path / "p.gif", transparency=1)
    rgb = np.zeros((8, 8, 3), np.uint8)
    rgb[:4, :, 0] = 255
    Image.fromarray(rgb).save(tmp_path / "key.png", transparency=(0, 0, 0))
    for name in ("rgba.png", "rgba.webp", "p.png", "p.gif", "key.png"):
        out = decode(tmp_path / name, 8)
        assert out[:, 0, 0].tolist() == [255, 0, 0], name
        assert out[:, 7, 7].tolist() == [255, 255, 255], name
    grey = Image.fromarray(np.full((8, 8, 2), (0, 0), np.uint8), "LA")
    grey.save(tmp_path / "la.png")
    assert decode(tmp_path / "la.png", 8).min() == 255


def test_numbers_without_an_agreed_range_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "f.tiff")
    Image.fromarray(np.full((4, 4), 10**6, np.int32)).save(tmp_path / "i.tiff")
    for name in ("f.tiff", "i.tiff"):
        with pytest.raises(DataError, match=rf"{name}.*8 or 16 bits"):
            decode(tmp_path / name, 8)


def test_large_jpegs_lose_nothing_by_the_short_cut(tmp_path):
    y, x = np.mgrid[0:1200, 0:1600]
    waves = 127 + 60 * np.sin(x / 23) + 60 * np.cos(y / 31)
    pixels = np.stack([waves, waves[::-1], 255 - waves], -1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.jpg", quality=95)
    for size in (64, 128, 300):
        whole = float_squash(np.asarray(Image.open(tmp_path / "x.jpg")), size)
        error = (decode(tmp_path / "x.jpg", size) - whole).abs()
        assert error.mean() < 0.6
        assert error.max() <= 4


def test_the_size_must_be_possible(tmp_path):
    with pytest.raises(DataError, match="at least 1"):
        decode(tmp_path / "x.png", 0)


def test_image_files(tmp_path):
    paths = []
    for level in (0, 100, 200):
        paths.append(tmp_path / f"{level}.png")
        Image.new("RGB", (5, 9), (level, level, level)).save(paths[-1])
    files = ImageFiles(paths)
    assert len(files) == 3
    assert [int(files.decode(row, 4).float().mean()) for row in range(3)] == [0, 100, 200]
    assert files.name(1) == str(paths[1])
    assert files.select(np.array([2, 0])).paths == [paths[2], paths[0]]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("frames", [1, 2])
def test_an_opened_image_does_not_need_its_file(tmp_path, format, frames):
    first = Image.fromarray(gradient())
    more = {} if frames == 1 or format in ("JPEG", "BMP") else {"save_all": True, "append_images": [first.rotate(90)]}
    first.save(tmp_path / "x", format, **more)
    expected = np.asarray(Image.open(io.BytesIO((tmp_path / "x").read_bytes())).convert("RGB"))
    image = open_image(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"something else")
    assert getattr(image, "fp", None) is None  # closed
    assert np.array_equal(np.asarray(image.convert("RGB")), expected)
