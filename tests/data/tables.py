"""Labels of every kind, with names that are hard to write down: for the tests that write and read back."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pluralis.data.dataset import Dataset
from pluralis.labels import Labels

IDS = ["'q.jpg", "+1.png", "=1.jpg", "a b.jpg", "a,b.jpg", 'a"b.jpg', "sub/c.jpg", "sub/deep/null.jpg", "日本.jpg"]
HARD = ["image", "label", "value", "labels", "null", "NaN", "0", "=1+1", "'=1", "'", "a,b", 'a"b', "a\nb", "é", "é"]


def make_images(folder):
    """The empty files IDS: nothing decodes them."""
    for name in IDS:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@st.composite
def tables(draw, folder, values=(-1, 0, 1), names=HARD):
    """A Dataset over some of IDS with up to six classes."""
    ids = sorted(draw(st.lists(st.sampled_from(IDS), min_size=1, unique=True)))
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
    classes = draw(st.lists(st.sampled_from(names) | text, min_size=1, max_size=6, unique=True))
    count = len(ids) * len(classes)
    cells = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
    labels = Labels.from_dense(np.array(cells).reshape(len(ids), len(classes)), classes, ids)
    return Dataset([folder.resolve() / name for name in ids], labels)


def for_all(strategy, check, examples):
    """Run `check` on that many drawn values."""
    settings(max_examples=examples, deadline=None, database=None)(given(strategy)(lambda value: check(value)))()
