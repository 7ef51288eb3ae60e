"""What `data inspect` prints: the table of classes says which of them it shows."""

import pytest

from pluralis.data.images import ImageFiles
from pluralis.data.inspection import inspect_data
from pluralis.data.inspection_tables import classes_table
from pluralis.labels import Labels


@pytest.mark.parametrize(
    ("lines", "title", "shown"),
    [
        (20, "5 classes", [4, 3, 2, 1, 0]),
        (5, "5 classes", [4, 3, 2, 1, 0]),
        (4, "2 most and 2 least frequent of 5 classes", [4, 3, 1, 0]),
        (3, "2 most and 1 least frequent of 5 classes", [4, 3, 0]),
        (1, "1 most frequent of 5 classes", [4]),
    ],
)
def test_the_title_says_which_classes_are_shown(lines, title, shown):
    labels = Labels.from_lists([[c] for c in range(5) for _ in range(c)], [f"class {c}" for c in range(5)])
    table = classes_table(inspect_data(ImageFiles([]), labels, look=False), lines)
    assert table.title == title
    assert [str(cell) for cell in table.columns[0].cells] == [f"class {c}" for c in shown]
