"""Small files that would take much memory or time to decode, by tiles, by scans, or by their kind of pixels."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from pluralis.data.images import to_rgb
from pluralis.data.safe_io import MAX_SCANS, image_size, open_image
from pluralis.data.tiff_tiles import tile_pixels
from pluralis.errors import DataError


def tiff(*sides, order="<", large=False):
    """A grey TIFF of 64 × 64 pixels in one tile, whose width and height are given, perhaps more than once."""
    data = zlib.compress(bytes(64 * 64))
    tags = [(256, 3, 64), (257, 3, 64), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1), *sides]
    entry, count, place = ("HHQ", "Q", "Q") if large else ("HHI", "H", "I")
    start = (16 if large else 8) + struct.calcsize(order + count) + (20 if large else 12) * (len(tags) + 2) + 8
    tags += [(324, 4, start), (325, 4, len(data))]
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if large else 42)
    head += struct.pack(order + "HHQ", 8, 0, 16) if large else struct.pack(order + "I", 8)
    body = struct.pack(order + count, len(tags))
    for tag, kind, value in tags:
        number = struct.pack(order + {3: "H", 4: "I", 16: "Q"}[kind], value)
        body += struct.pack(order + entry, tag, kind, 1) + number.ljust(8 if large else 4, b"\0")
    return head + (body + struct.pack(order + place, 0)).ljust(start - len(head), b"\0") + data


@pytest.mark.parametrize(("order", "large"), [("<", False), (">", False), ("<", True)])
def test_the_pixel_limit_holds_for_tiles(order, large):
    def made(*sides):
        return tiff(*sides, order=order, large=large)

    assert open_image("a.tif", content=made((322, 3, 64), (323, 3, 64))).size == (64, 64)
    assert tile_pixels(io.BytesIO(made((322, 4, 64), (323, 3, 80)))) == 64 * 80
    for sides in (
        [(322, 4, 20_000), (323, 4, 20_000)],
        [(322, 4, 20_000), (322, 4, 64), (323, 4, 20_000), (323, 4, 64)],  # decoders take the first or the last
        [(322, 4, 64), (322, 4, 20_000), (323, 4, 64), (323, 4, 20_000)],
    ):
        with pytest.raises(DataError, match=r"a\.tif' is refused: its tiles are over the limit of 178,956,970 pixels"):
            open_image("a.tif", content=made(*sides))


def test_tiles_whose_size_lies_elsewhere():
    content = bytearray(tiff((322, 4, 64), (323, 4, 20_000)))
    at = content.index(struct.pack("<HHI", 322, 4, 1))
    struct.pack_into("<HHII", content, at, 322, 16, 1, len(content))  # 64 bits do not fit beside the tag
    assert tile_pixels(io.BytesIO(bytes(content) + struct.pack("<Q", 20_000))) == 20_000**2


def test_a_tiff_without_tiles_has_none(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.tif")
    with (tmp_path / "a.tif").open("rb") as file:
        assert tile_pixels(file) == 0


def jpeg(repeat=0, progressive=True, side=64, between=b"", after=b""):
    """A JPEG whose last scan comes so many times more."""
    out = io.BytesIO()
    Image.new("RGB", (side, side)).save(out, "JPEG", progressive=progressive, comment="x" * 100)
    content = out.getvalue()
    last = content.rfind(b"\xff\xc4", 0, content.rfind(b"\xff\xda")) if progressive else content.rfind(b"\xff\xda")
    return content[:-2] + (between + content[last:-2]) * repeat + content[-2:] + after


def in_single_colours(repeat):
    """Not progressive, but a scan for each colour, the last one many times."""
    content = jpeg(progressive=False)
    head, scan = content[: content.index(b"\xff\xda")], content[content.index(b"\xff\xda") :]
    pixels = scan[2 + int.from_bytes(scan[2:4]) : -2]
    one, two, three = (b"\xff\xda\0\x08\x01" + bytes([n, 0, 0, 63, 0]) + pixels for n in (1, 2, 3))
    return head + one + two + three * (1 + repeat) + b"\xff\xd9"


HIDDEN = b"\xff\xfe\0\x04\xff\xd9"  # a comment that looks like the end
BOMBS = {
    "progressive": jpeg(200),
    "with filling": jpeg(200, between=b"\xff\xff\xff"),
    "with an end in a comment": jpeg(200, between=HIDDEN),
    "a scan for each colour": in_single_colours(200),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_jpeg_of_too_many_scans_is_refused(kind):
    for attempt in (open_image, lambda *a, **k: image_size(*a, **k)):
        with pytest.raises(DataError, match=rf"a\.jpg' is refused: it paints the picture more than {MAX_SCANS} times"):
            attempt("a.jpg", content=BOMBS[kind])


def test_usual_jpegs_open():
    for content in (
        jpeg(),
        jpeg(50),
        jpeg(progressive=False),
        in_single_colours(0),
        jpeg(after=b"\xff\xda\0\x02" * 500),  # behind the end a phone may put a film
        jpeg(progressive=False, after=b"\xff\xda\0\x02" * 500),
        jpeg(repeat=3, between=b"\xff\xfe\x07\xd2" + b"\xff\xda" * 1000),  # marks in a comment are none
    ):
        assert open_image("a.jpg", content=content).size == (64, 64)


def test_a_usual_jpeg_is_not_read_to_its_end(tmp_path):
    from pluralis.data.jpeg_scans import has_more_scans

    content = jpeg(progressive=False, side=2000)
    file = io.BytesIO(content)
    assert not has_more_scans(file, 1)
    assert file.tell() < len(content) / 2
    assert has_more_scans(io.BytesIO(jpeg()), 1)


def test_transparent_pixels_lie_on_white_to_the_last_bit():
    colour, alpha = np.mgrid[0:256, 0:256].astype(np.uint8)
    image = Image.fromarray(np.stack([colour, 255 - colour, alpha, alpha], -1))
    expected = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    assert np.array_equal(np.asarray(to_rgb(image)), np.asarray(expected))


def test_every_grey_of_16_bits():
    grey = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = ((grey.astype(np.int64) + 128) // 257)[..., None].repeat(3, -1)
    for wide in (grey, grey.astype(np.int32)):
        assert np.array_equal(np.asarray(to_rgb(Image.fromarray(wide))), expected)


def test_memory_of_pixels():
    """Bytes a pixel at the peak, beside the image itself."""
    program = """if True:
        import re
        from pathlib import Path
        import numpy as np
        from PIL import Image
        from pluralis.data.images import to_rgb
        def peak():
            return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
        for mode in ("I;16", "RGBA"):
            to_rgb(Image.new(mode, (16, 16)))
            image = Image.new(mode, (4000, 4000))
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
            before = peak()
            to_rgb(image)
            print((peak() - before) / 4000**2)
    """
    grey, alpha = map(float, subprocess.check_output([sys.executable, "-c", program], text=True).split())
    assert grey < 7
    assert alpha < 6
