"""Counts what a device would have to do: the operations that are launched, and the memory that they read and write."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_VIEWS = {"alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice", "split", "squeeze"}
_VIEWS |= {"t", "transpose", "unbind", "unsqueeze", "view"}
FREE = _VIEWS | {"empty", "empty_like", "lift_fresh", "new_empty", "promote_types"}


class Passes(TorchDispatchMode):
    """Within it, `launched` are the names of the operations, less views, `moved` their bytes, `largest` a result's."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []
        self.moved = self.largest = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        name = op.overloadpacket.__name__
        self.largest = max(self.largest, *map(_bytes, tree_leaves(result)), 0)
        if name not in FREE:
            self.launched.append(name)
            given = {id(t): t for t in tree_leaves([args, {k: v for k, v in kwargs.items() if k != "out"}])}
            self.moved += sum(_bytes(t) for t in [*given.values(), *tree_leaves(result)])
        return result


def _bytes(thing: Any) -> int:
    """Of the distinct entries: what is expanded is read once."""
    if not isinstance(thing, Tensor):
        return 0
    size = thing.element_size()
    for length, stride in zip(thing.shape, thing.stride(), strict=True):
        size *= length if stride else 1
    return size
