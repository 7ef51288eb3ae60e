"""Hostile names and hostile images: nothing outside is opened, nothing large is decoded, all is named."""

import io
import os
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from pluralis.data.images import decode
from pluralis.data.safe_io import FORMATS, open_image, resolve_inside
from pluralis.errors import DataError
from tests.data.tables import for_all

TRICKS = {
    "parent": "../secret.txt",
    "parent in the middle": "a/../../secret.txt",
    "parent that stays inside": "a/../inside.txt",
    "only parent": "..",
    "parent at the end": "a/..",
    "absolute": "/etc/passwd",
    "double slash": "//etc/passwd",
    "windows drive": "C:\\Windows\\win.ini",
    "windows root": "\\Windows\\win.ini",
    "windows share": "\\\\server\\share\\x",
    "windows parent": "..\\secret.txt",
    "mixed parent": "a/..\\..\\secret.txt",
    "nul": "inside.txt\0.jpg",
    "nul first": "\0",
    "empty": "",
    "dot": ".",
    "dots and slashes": "././",
    "long part": "x" * 256,
    "long part in bytes": "ü" * 128,
    "long name": "x/" * 2100 + "x",
    "lone surrogate": "\ud800.jpg",
    "link to a file outside": "link.txt",
    "link to a folder outside": "folder/secret.txt",
    "link to a link outside": "link2.txt",
    "link to the parent": "up/secret.txt",
    "link to the root's sibling": "sibling/secret.txt",
}


@pytest.fixture
def root(tmp_path):
    """A folder with one file inside, and secrets around it."""
    root = tmp_path / "root"
    for folder in (root / "a", tmp_path / "outside", tmp_path / "root-too"):
        folder.mkdir(parents=True)
    (root / "inside.txt").write_text("inside")
    for folder in ("", "outside", "root-too"):
        (tmp_path / folder / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "link2.txt").symlink_to("link.txt")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "up").symlink_to("..")
    (root / "sibling").symlink_to(tmp_path / "root-too")
    (root / "fine.txt").symlink_to("inside.txt")
    (root / "loop").symlink_to("loop")
    return root


@pytest.mark.parametrize("trick", TRICKS)
def test_tricks_are_refused_and_nothing_is_opened(root, trick):
    opened = []
    watching = True

    def watch(event, args):
        if watching and event == "open":
            opened.append(args[0])

    sys.addaudithook(watch)
    with pytest.raises(DataError) as caught:
        resolve_inside(root, TRICKS[trick])
    watching = False
    assert not opened
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


def test_names_inside_are_resolved(root):
    real = Path(os.path.realpath(root))
    assert resolve_inside(root, "inside.txt").read_text() == "inside"
    assert resolve_inside(root, "fine.txt") == real / "inside.txt"
    assert resolve_inside(str(root), "./a//new.txt") == real / "a" / "new.txt"
    assert resolve_inside(root, "...") == real / "..."
    assert resolve_inside(root, "a:b ü\n.jpg") == real / "a:b ü\n.jpg"
    assert resolve_inside("/", "etc") == Path(os.path.realpath("/etc"))
    with pytest.raises(DataError, match="not there"):
        open_image(resolve_inside(root, "loop"))


def test_a_root_that_is_itself_a_link(root, tmp_path):
    (tmp_path / "alias").symlink_to(root)
    assert resolve_inside(tmp_path / "alias", "inside.txt").read_text() == "inside"


def image_bytes(format="JPEG", size=(40, 30), mode="RGB", **options):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, format, **options)
    return out.getvalue()


def png(width, height, data=b"", depth=8, colour=2):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def flipped(data, at, by=0xFF):
    return data[:at] + bytes([data[at] ^ by]) + data[at + 1 :]


def webp_of_canvas(side):
    """A WebP whose header claims a large canvas."""
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes([2, 0, 0, 0])
    body += (side - 1).to_bytes(3, "little") * 2
    return b"RIFF" + struct.pack("<I", len(body)) + body


BROKEN = {
    "empty": b"",
    "one byte": b"\xff",
    "text": b"this is not an image, it only has the name of one" * 10,
    "html": b"<!DOCTYPE html><html><body>404 not found</body></html>",
    "jpeg cut in the header": image_bytes()[:10],
    "jpeg cut in the tables": image_bytes()[:200],
    "jpeg cut in the pixels": image_bytes(size=(400, 300))[:20000],
    "jpeg start only": b"\xff\xd8",
    "jpeg of zeros": image_bytes()[:30] + bytes(2000),
    "jpeg whose size is zero": image_bytes().replace(struct.pack(">HH", 30, 40), bytes(4), 1),
    "png cut": image_bytes("PNG")[:1000],
    "png with a wrong checksum": flipped(image_bytes("PNG"), 30),
    "png whose pixels are not packed": png(100, 100, b"no zlib stream"),
    "png with too few pixels": png(100, 100, zlib.compress(bytes(50))),
    "png without pixels": png(10, 10),
    "png of zero width": png(0, 10),
    "png of a colour type that is none": png(10, 10, zlib.compress(bytes(400)), colour=5),
    "gif cut": image_bytes("GIF", mode="P")[:400],
    "gif header only": b"GIF89a" + bytes(7),
    "bmp cut": image_bytes("BMP")[:500],
    "bmp header only": b"BM" + bytes(60),
    "tiff cut": image_bytes("TIFF")[:300],
    "tiff whose directory is elsewhere": b"II*\0" + struct.pack("<I", 10**9) + bytes(50),
    "tiff whose directory is itself": b"II*\0" + struct.pack("<I", 0) + bytes(50),
    "webp cut": image_bytes("WEBP")[:200],
    "webp of noise": b"RIFF" + struct.pack("<I", 100) + b"WEBPVP8 " + bytes(range(100)),
    "webp of a huge canvas": webp_of_canvas(60_000),
    "huge png": png(50_000, 50_000),
    "huge bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0),
    "huge gif": b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(3) + b"," + bytes(20),
    "a format that is not wanted": image_bytes("PPM"),
    "an icon": image_bytes("ICO"),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_images_are_named(tmp_path, kind):
    path = tmp_path / "photo.jpg"
    path.write_bytes(BROKEN[kind])
    for attempt in (open_image, lambda p: decode(p, 32)):
        with pytest.raises(DataError, match=r"photo\.jpg") as caught:
            attempt(path)
        assert "\n" not in str(caught.value)
        assert caught.value.args == (str(caught.value),)


def test_what_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path, tmp_path / "none.jpg", tmp_path / "pipe.jpg", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(DataError, match="not there, or not a plain file"):
            open_image(path)


def test_a_name_with_a_line_break_stays_on_one_line(tmp_path):
    path = tmp_path / "two\nlines\x1b[31m.jpg"
    path.write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        open_image(path)
    assert str(caught.value).isprintable()


def test_the_pixel_limit(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(image_bytes("PNG", size=(40, 30)))
    assert open_image(path, max_pixels=1200).size == (40, 30)
    with pytest.raises(DataError, match=r"40 × 30 pixels are over the limit of 1,199"):
        open_image(path, max_pixels=1199)


@pytest.mark.parametrize("kind", ["huge png", "huge bmp", "huge gif", "webp of a huge canvas"])
def test_a_bomb_is_refused_without_taking_memory(tmp_path, kind):
    path = tmp_path / "bomb.png"
    path.write_bytes(BROKEN[kind])
    program = textwrap.dedent("""
        import re, sys
        from pathlib import Path
        import numpy as np
        from PIL import Image
        from pluralis.data.safe_io import open_image
        from pluralis.errors import DataError
        Image.init()
        # Not ru_maxrss, which a process takes over from the one that started it: from here it would never grow.
        peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        before = peak()
        try:
            open_image(sys.argv[1])
        except DataError as error:
            print(peak() - before, error)
    """)
    out = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True).stdout
    assert "bomb.png" in out
    assert int(out.split()[0]) < 64 * 1024


@pytest.mark.parametrize("format", FORMATS)
def test_wanted_formats_open_whatever_their_name(tmp_path, format):
    path = tmp_path / "photo.dat"
    path.write_bytes(image_bytes(format))
    assert open_image(path).size == (40, 30)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(tmp_path, format, orientation):
    upright = np.zeros((32, 48, 3), np.uint8)
    upright[:16, :24] = 255  # white in the upper left quarter
    turn = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a),
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: np.rot90(a, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo"
    Image.fromarray(np.ascontiguousarray(turn(upright))).save(path, format, exif=exif)
    seen = np.asarray(open_image(path).convert("RGB")).astype(int)
    assert seen.shape == upright.shape
    assert abs(seen - upright)[4:12, 4:20].max() < 30
    assert abs(seen - upright)[20:, 28:].max() < 30
    assert seen[8, 8].mean() > 200 > 50 > seen[24, 8].mean()


JUNK = (
    b"nonsense",
    b"II*\0\xff\xff\xff\xff",
    b"MM\0*\0\0\0\x08\xff\xff" + bytes(40),
    b"II+\0\x08\0\0\0" + bytes(8),
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("junk", JUNK)
def test_broken_metadata_does_not_cost_the_image(tmp_path, format, junk):
    path = tmp_path / "photo"
    path.write_bytes(image_bytes(format, exif=b"Exif\0\0" + junk))
    assert open_image(path).size == (40, 30)


def test_an_odd_entry_in_the_metadata_does_not_hide_the_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x011A] = 72.0
    odd = exif.tobytes().replace(b"\x01\x1a\x00\x05", b"\x01\x1a\x00\x07")  # a resolution of raw bytes
    assert odd != exif.tobytes()
    path = tmp_path / "photo.jpg"
    path.write_bytes(image_bytes(exif=odd))
    assert open_image(path).size == (30, 40)


WHOLE = {format: image_bytes(format) for format in FORMATS}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_altered_files_open_or_raise_a_data_error(tmp_path, examples):
    def check(drawn):
        format, changes, keep = drawn
        data = bytearray(WHOLE[format])
        for place, by in changes:
            data[min(len(data) - 1, int(place**3 * len(data)))] ^= by  # mostly near the header
        path = tmp_path / "altered"
        path.write_bytes(data[: max(1, int((1 - keep**4) * len(data)))])
        message = "altered"
        try:
            assert decode(path, 16).shape == (3, 16, 16)
        except DataError as error:
            message = str(error)
        assert "altered" in message

    changes = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=8)
    for_all(st.tuples(st.sampled_from(FORMATS), changes, st.floats(0, 1)), check, examples)
