"""What the lines and columns of a table are called."""

from __future__ import annotations

from typing import Any


def shown_name(column: str, selection: str) -> str:
    """
    >>> shown_name("VOC", "clean"), shown_name("", "clean")
    ('VOC, clean', 'clean')
    """
    return ", ".join(filter(None, (column, selection)))


def line_name(row: str, values: dict[str, Any]) -> str:
    """
    >>> line_name("gr", {"train.lr": 1e-5})
    'gr, lr 1e-05'
    """
    return ", ".join([row, *(f"{key.rsplit('.', 1)[-1]} {_text(value)}" for key, value in values.items())])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
