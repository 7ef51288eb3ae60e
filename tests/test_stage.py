"""What a stage accepts: numbers within their ranges, and nothing that fails hours later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pluralis.errors import RecipeError
from pluralis.stage import Stage


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": "3"}, "train.epochs is '3'; it must be a whole number"),
        ({"epochs": 1.5}, "train.epochs is 1.5; it must be a whole number"),
        ({"batch_size": 2.0}, "train.batch_size is 2.0; it must be a whole number"),
        ({"epochs": True}, "train.epochs is True; it must be a whole number"),
        ({"freeze": 0.5}, "train.freeze is 0.5; it must be a whole number"),
        ({"lr": "1e-3"}, "train.lr is '1e-3'; it must be a number"),
        ({"lr": None}, "train.lr is None; it must be a number"),
        ({"lr": float("nan")}, "train.lr is nan; it must be from 0 to 1000"),
        ({"batch_size": 0}, "train.batch_size is 0; it must be from 1 to 1e"),
        ({"freeze_bn": 1}, "train.freeze_bn is 1; it must be true or false"),
        ({"optimizer": "adan"}, "train.optimizer is 'adan'; it must be one of adam, adamw, sgd"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Stage(**changes)
    assert said in str(caught.value)


def test_numbers_of_numpy_become_plain_ones() -> None:
    stage = Stage(epochs=np.int64(3), lr=np.float32(0.5), clip=1)  # type: ignore[arg-type]
    assert (stage.epochs, stage.lr, stage.clip) == (3, 0.5, 1)
    assert [type(value) for value in (stage.epochs, stage.lr, stage.clip)] == [int, float, int]
