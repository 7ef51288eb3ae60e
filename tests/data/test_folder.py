"""The fast way to an image says what the careful one says."""

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pluralis.data.dataset import require_files
from pluralis.data.formats import folder as module
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
            assert folder.usual(name) == usual


NAMES = st.lists(st.sampled_from(PARTS), max_size=4).map("/".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(NAMES, max_size=12), st.sampled_from([0, 1, 3, 1000]), st.sampled_from([0, 1, 2]))
@example(["a.jpg", "/a.jpg"], 0, 2)
@example(["sub/b.jpg", "short/b.jpg", "./sub//b.jpg", "way/b.jpg"], 0, 2)
@example(["short/b.jpg", "sub/b.jpg", "./a.jpg", "inside.jpg", "no.jpg", "sub"], 0, 2)
@example(["a.jpg", "..\\secret.jpg"], 0, 2)
@example(["short/b.jpg"], 0, 2)
@example(["./" * 2046 + "a.jpg"], 0, 5)  # the way alone is not too long
@example(["sub/" * 400 + "b.jpg", "C:/x.jpg"], 0, 2)
def test_all_at_once_as_one_by_one(root, names, many, entries):
    """Folders listed always or never, as a whole or in part: the files are the same, and so is what is refused."""
    one, every = Folder(root), Folder(root)
    expected = [outcome(lambda name=name: one.find(name)[1]) for name in names]
    refused = [found for found in expected if isinstance(found, str)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MANY", many)
        patch.setattr(module, "_ENTRIES", entries)
        found = outcome(lambda: every.locate(names))
    if refused:
        assert found == refused[0]
    else:
        assert found == expected
        assert every.missing == one.missing
        assert len(set(found.names)) == len(set(expected))  # one file has one name


def test_names_that_only_look_like_files_of_the_folder(tmp_path):
    """A file may be called like a way out, where slashes of Windows part nothing."""
    (tmp_path / "images").mkdir()
    for name in ("..\\secret.jpg", *(f"{number}.jpg" for number in range(20))):
        (tmp_path / "images" / name).touch()
    names = [f"{number}.jpg" for number in range(20)]
    folder = Folder(tmp_path / "images")
    assert folder.locate(names) == [tmp_path.resolve() / "images" / name for name in names]
    with pytest.raises(DataError, match="steps out with"):
        folder.locate([*names, "..\\secret.jpg"])
    with pytest.raises(DataError, match="it is absolute"):
        folder.locate([*names, "/1.jpg"])


def test_listed_files_are_not_looked_at(tmp_path, monkeypatch):
    """One look at the folder serves all plain files in it; links and missing files are looked at one by one."""
    for number in range(100):
        (tmp_path / f"{number:03}.jpg").touch()
    os.symlink("000.jpg", tmp_path / "link.jpg")
    looked = []
    plain = os.lstat
    monkeypatch.setattr(
        os, "lstat", lambda path, **given: looked.append(os.path.basename(path)) or plain(path, **given)
    )
    folder = Folder(tmp_path)
    looked.clear()
    names = [*(f"{number:03}.jpg" for number in range(100)), "link.jpg", "no.jpg"]
    found = folder.locate(names)
    assert set(looked) <= {"link.jpg", "000.jpg", "no.jpg", tmp_path.name, *tmp_path.parts}
    assert found[100] == tmp_path.resolve() / "000.jpg"
    assert [path.name for path in folder.missing] == ["no.jpg"]
    assert all(name is listed for name, listed in zip(names[:100], found.names, strict=False))  # no copies


def test_a_folder_that_may_not_be_listed(root, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(module, "_MANY", 0)
    monkeypatch.setattr(os, "scandir", refuse)
    folder = Folder(root)
    assert folder.locate(["a.jpg", "sub/b.jpg"]) == [root.resolve() / "a.jpg", root.resolve() / "sub" / "b.jpg"]


def test_missing_files_are_counted(root):
    folder = Folder(root)
    for name in ("a.jpg", "no.jpg", "sub", "sub/no.jpg"):
        folder.find(name)
    found = folder.tell(folder.locate([]), "list.csv")
    with pytest.raises(DataError, match=r"list\.csv: 3 of the listed images are missing: .*no\.jpg', .*sub', .*sub/no"):
        require_files(found)
    with pytest.raises(DataError, match="there is no image folder"):
        Folder(root / "none")


def test_a_relative_folder_that_is_not_there_is_told_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"no image folder 'photos' in {tmp_path}, where.*--images"):
        Folder("photos")
