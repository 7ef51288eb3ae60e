"""What people hand over as scores and labels."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from pluralis.errors import LabelError, RecipeError
from pluralis.inputs import as_labels, as_tensor, check_labels
from pluralis.labels import Labels
from pluralis.params import flag, number, number_or_list, whole

DENSE = np.array([[1, 0, -1], [0, 1, 0]], np.int8)


class Table:
    """Anything that numpy can read, as the tables of data frames are."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype)


@pytest.mark.parametrize(
    "given",
    [
        DENSE,
        DENSE[::-1][::-1],
        DENSE.astype(">i2"),
        DENSE.astype(np.float16),
        DENSE.tolist(),
        torch.from_numpy(DENSE),
        Labels.from_dense(DENSE),
        Table(DENSE),
    ],
    ids=["array", "turned", "big endian", "half", "list", "tensor", "labels", "table"],
)
def test_matrices_of_all_kinds_are_taken(given: Any) -> None:
    found = as_tensor("metrics", "truth", given)
    assert torch.equal(found.to(torch.int8), torch.from_numpy(DENSE))
    assert as_labels(given) == Labels.from_dense(DENSE)


def test_what_was_given_stays_as_it_was() -> None:
    locked = DENSE.copy()
    locked.flags.writeable = False
    as_tensor("metrics", "truth", locked)[0, 0] = -1
    assert locked[0, 0] == 1
    assert as_tensor("metrics", "truth", DENSE > 0).dtype == torch.bool
    assert as_tensor("metrics", "truth", np.array([[65535]], np.uint16)).item() == 65535


@pytest.mark.parametrize(
    "given",
    [sparse.csr_matrix(DENSE), sparse.coo_array(DENSE), Table(DENSE.astype(object)), [[1], [1, 2]], object(), None],
    ids=["csr", "coo", "table of objects", "ragged", "object", "none"],
)
def test_what_is_no_matrix_is_named(given: Any) -> None:
    with pytest.raises(LabelError, match="metrics: truth"):
        as_tensor("metrics", "truth", given)
    with pytest.raises(LabelError):
        as_labels(given)


def test_sparse_matrices_are_told_what_to_do() -> None:
    with pytest.raises(LabelError, match=r"sparse matrix \(csr_matrix\).*toarray.*from_entries"):
        Labels.from_dense(sparse.csr_matrix(DENSE))
    with pytest.raises(LabelError, match="not a DataLoader"):
        Labels.from_dense(torch.utils.data.DataLoader([1]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_labels_are_one_of_three(dtype: torch.dtype) -> None:
    labels = torch.from_numpy(DENSE).to(dtype)
    check_labels("loss", labels)
    check_labels("loss", labels[:0])
    for value in (2, -2, *((0.5, math.nan, math.inf) if dtype.is_floating_point else ())):
        wrong = labels.clone()
        wrong[1, 2] = value
        with pytest.raises(LabelError, match=f"loss: the label of row 1, class 2 is {value}"):
            check_labels("loss", wrong)
        with pytest.raises(LabelError, match=r"of place \(5,\) is"):
            check_labels("loss", wrong.flatten())


def test_a_sign_that_was_lost_is_found() -> None:
    with pytest.raises(LabelError, match="row 0, class 2 is 255.*uint8 cannot hold"):
        check_labels("loss", torch.from_numpy(DENSE).to(torch.uint8))
    check_labels("loss", torch.from_numpy(DENSE > 0))


@pytest.mark.parametrize(
    "half", [0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5), np.array(0.5), Fraction(1, 2)]
)
def test_numbers_are_plain_afterwards(half: Any) -> None:
    found = number("loss", "k", half)
    assert (found, type(found)) == (0.5, float)
    assert number_or_list("loss", "k", half) == 0.5
    with pytest.raises(RecipeError, match="at least 1"):
        number("loss", "k", half, low=1.0)
    with pytest.raises(RecipeError, match="whole number"):
        whole("loss", "k", half)


@pytest.mark.parametrize("three", [3, np.int8(3), np.uint64(3), torch.tensor(3), np.array(3)])
def test_whole_numbers_are_plain_afterwards(three: Any) -> None:
    found = whole("loss", "k", three)
    assert (found, type(found)) == (3, int)
    with pytest.raises(RecipeError, match="from 0 to 2"):
        whole("loss", "k", three, high=2)


@pytest.mark.parametrize("wrong", [True, np.True_, torch.tensor(True), "1", None, torch.ones(1), np.nan, [1.0], 1j])
def test_what_is_no_number_is_named(wrong: Any) -> None:
    with pytest.raises(RecipeError, match="loss: k is"):
        number("loss", "k", wrong)
    with pytest.raises(RecipeError, match="loss: k is"):
        whole("loss", "k", wrong)


def test_flags_and_lists() -> None:
    assert flag("loss", "on", np.True_) is True  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="true or false"):
        flag("loss", "on", 1)  # type: ignore[arg-type]
    for given in ([0.5, 1], (0.5, 1), np.array([0.5, 1]), torch.tensor([0.5, 1])):
        assert number_or_list("loss", "k", given) == [0.5, 1.0]
    with pytest.raises(RecipeError, match=r"k\[1\] is 3.0; give a number of at most 1"):
        number_or_list("loss", "k", np.array([0.5, 3]), 0.0, high=1.0)
    with pytest.raises(RecipeError, match="empty list"):
        number_or_list("loss", "k", [])
