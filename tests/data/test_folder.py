"""The fast way to an image says what the careful one says."""

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pluralis.data.formats.folder import Folder
from pluralis.data.safe_io import resolve_inside
from pluralis.errors import DataError


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder") / "images"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "C:").mkdir()
    for name in ("a.jpg", "sub/b.jpg", "sub/deep/c.jpg", "C:/x.jpg"):
        (root / name).touch()
    (root.parent / "secret.jpg").touch()
    (root.parent / "beside").mkdir()
    (root.parent / "beside" / "b.jpg").touch()
    os.symlink("sub/b.jpg", root / "inside.jpg")
    os.symlink("../secret.jpg", root / "outside.jpg")
    os.symlink("../beside", root / "way")
    os.symlink("sub", root / "short")
    os.symlink("loop", root / "loop")
    return root


def outcome(call):
    """What it gives, or what its error says."""
    try:
        return call()
    except DataError as error:
        return str(error)


PARTS = ["a.jpg", "sub", "deep", "b.jpg", "c.jpg", "way", "short", "loop", "inside.jpg", "outside.jpg", "..", ".", ""]
PARTS += ["C:", "x.jpg", "\\", "..\\secret.jpg", "no.jpg", "\0", "x" * 300, "\ud800", "\udcff"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=5).map("/".join))
@example("/a.jpg")
@example("C:/x.jpg")
@example("")
@example("short/b.jpg")
@example("./sub//b.jpg")
@example("sub/" * 400 + "b.jpg")
def test_as_careful_as_resolve_inside(root, name):
    folder = Folder(root)
    expected = outcome(lambda: resolve_inside(root, name))
    for _ in range(2):  # the way to the folder is known the second time
        found = outcome(lambda: folder.find(name))
        if isinstance(found, str):
            assert found == expected
        else:
            usual, file = found
            assert file == expected
            assert str(file) == os.path.realpath(root / usual)
            assert (file in folder.missing) == (not file.is_file())


def test_missing_files_are_counted(root):
    folder = Folder(root)
    for name in ("a.jpg", "no.jpg", "sub", "sub/no.jpg"):
        folder.find(name)
    with pytest.raises(DataError, match=r"list\.csv: 3 of the listed images are missing: .*no\.jpg', .*sub', .*sub/no"):
        folder.require("list.csv")
    with pytest.raises(DataError, match="there is no image folder"):
        Folder(root / "none")
