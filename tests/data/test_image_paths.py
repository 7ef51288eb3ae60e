"""Paths kept as texts are, to all who use them, a list of paths that nobody can change."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from pluralis.data.dataset import Dataset
from pluralis.data.image_paths import ImagePaths
from pluralis.data.images import ImageFiles
from pluralis.data.rows import select_rows
from pluralis.labels import Labels

NAMES = ["a.jpg", "sub/b.jpg", "日本.jpg", "c d.png"]
KINDS = {
    "below a folder": (ImagePaths("/photos", NAMES), [Path("/photos") / name for name in NAMES]),
    "below the root": (ImagePaths("/", NAMES), [Path("/") / name for name in NAMES]),
    "here": (ImagePaths(".", NAMES), [Path(name) for name in NAMES]),
    "a folder in an unusual spelling": (ImagePaths("./x//y/.", NAMES), [Path("x/y") / name for name in NAMES]),
    "whole paths": (ImagePaths("", [f"/x/{name}" for name in NAMES]), [Path("/x") / name for name in NAMES]),
    "of a list": (ImagePaths.of([Path("y") / name for name in NAMES]), [Path("y") / name for name in NAMES]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_as_a_list(kind):
    paths, listed = KINDS[kind]
    assert len(paths) == 4
    assert list(paths) == listed
    assert [paths[row] for row in (0, 1, 2, 3, -1)] == [*listed, listed[-1]]
    assert paths[np.int64(2)] == listed[2]
    assert paths[1:3] == listed[1:3]
    assert paths[::-1] == listed[::-1]
    assert list(reversed(paths)) == listed[::-1]
    assert listed[1] in paths
    assert Path("other") not in paths
    assert paths.index(listed[2]) == 2
    assert list(paths.texts()) == list(map(str, listed))
    assert paths.take(np.array([3, 0])) == paths.take([3, 0]) == [listed[3], listed[0]]
    more = [Path("z")]
    assert paths + more == listed + more
    assert more + paths == more + listed
    assert paths + paths == listed * 2
    assert type(paths + listed) is type(listed + paths) is list
    with pytest.raises(TypeError, match="unsupported operand"):
        paths + "z"
    with pytest.raises(IndexError):
        paths[4]
    with pytest.raises(IndexError):
        paths.take([4])
    with pytest.raises(TypeError, match="does not support item assignment"):
        paths[0] = Path("z")


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_same_paths(kind):
    paths, listed = KINDS[kind]
    assert paths == listed
    assert listed == paths
    assert paths == tuple(listed)
    assert paths == ImagePaths.of(listed) == ImagePaths(listed[0].parent, NAMES)
    assert paths != listed[:3]
    assert paths != [*listed[:3], Path("z")]
    assert paths != paths[:3]
    assert paths != ImagePaths("/elsewhere", NAMES)
    assert paths != "a.jpg"
    again = pickle.loads(pickle.dumps(paths))
    assert again == paths
    assert again.names == paths.names


def test_no_copy_of_what_is_light_already():
    paths = ImagePaths("/photos", NAMES)
    assert ImagePaths.of(paths) is paths
    assert paths[0] == Path("/photos/a.jpg")
    assert repr(paths) == "<4 paths below '/photos/'>"
    assert repr(ImagePaths("", [])) == "<0 paths>"


def test_in_a_data_set():
    """Names that are the ids take no memory of their own, also in some of the rows."""
    ids = [f"{row:03}.jpg" for row in range(6)]
    labels = Labels.from_lists([[0]] * 6, ["dog"], ids=ids)
    data, plain = Dataset(ImagePaths("/x", ids), labels), Dataset([Path("/x") / name for name in ids], labels)
    assert data == plain
    assert plain == data
    assert data != Dataset(ImagePaths("/y", ids), labels)
    some = select_rows(data, [4, 1])
    assert some.images == [Path("/x/004.jpg"), Path("/x/001.jpg")]
    assert some == select_rows(plain, [4, 1])
    assert all(name is id for name, id in zip(some.images.names, some.labels.ids, strict=True))
    files = ImageFiles(data.images)
    assert files.name(2) == "/x/002.jpg"
    assert files.select(np.array([5, 0])).paths == [Path("/x/005.jpg"), Path("/x/000.jpg")]
    assert files == ImageFiles(plain.images)


def test_file_facts_are_those_of_the_files(tmp_path):
    for size, name in enumerate(("a", "b", "c")):
        (tmp_path / name).write_bytes(b"x" * size)
    light, plain = ImageFiles(ImagePaths(tmp_path, "cab")), ImageFiles([tmp_path / name for name in "cab"])
    assert light.signature() == plain.signature() == b"[2, 0, 1]"
    assert list(light.origins()) == list(plain.origins())
    assert light.digest(0) == plain.digest(0)
