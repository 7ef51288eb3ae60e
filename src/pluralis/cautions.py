"""What a run is told before it starts: that it would end as any other, without what somebody expects of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from pluralis.calibration import how_written
from pluralis.labels import Labels
from pluralis.losses.base import Late
from pluralis.method import Method
from pluralis.methods.relabel import Relabel
from pluralis.stage import Stage

_NAMED = 3  # classes in a message


def cautions(method: Method, labels: Labels, plan: Stage) -> Iterator[str]:
    """A line about each part of the method that the plan's epochs never come to, and about what labels do not tell.

    >>> from pluralis import LossMethod, create_loss, create_model
    >>> method = LossMethod(create_model("tiny", 2), create_loss("ll-r"))
    >>> for line in cautions(method, Labels.from_lists([[0], [0]], ["cat", "dog"]), Stage(epochs=1)):
    ...     print(line)
    loss ll-r: no label will be left out: that begins after 1 epoch and there is 1; give 2 or more
    1 of 2 classes have no present label in the 2 training rows and cannot be learned: dog
    """
    epochs = method.stages(plan)[-1].epochs
    for part in method.late():
        if epochs <= part.after:
            yield _never(part, epochs)
    if any(map(method.joins, range(len(method.stages(plan))))) and not _norms_stay(method, plan):
        yield (
            "what is kept is the mean of the weights of several stages, but their batch norms learn, and the statistics"
            " of a mean are not the mean of theirs: set train.freeze_bn = true, or let none join (students = 1)"
        )
    positives = labels.summary().positives
    if not positives.any():
        yield f"none of the {len(labels):,} training rows has a present label (1): no class can be learned from them"
    elif not positives.all():
        names = [labels.classes[column] for column in np.flatnonzero(positives == 0)]
        more = ", …" if len(names) > _NAMED else ""
        yield (
            f"{len(names):,} of {len(positives):,} classes have no present label in the {len(labels):,} training rows"
            f" and cannot be learned: {', '.join(names[:_NAMED])}{more}"
        )
    empty = len(labels.summary().empty_rows)
    if empty and how_written(method).get("unlabelled") == "skip":
        later = " (later stages learn what the first one expects of them)" if isinstance(method, Relabel) else ""
        yield (
            f"{empty:,} of {len(labels):,} training rows have no label at all, and nothing is learned from them{later}:"
            " right if nobody looked at them; if somebody did and found nothing to write, set"
            ' unlabelled="absent" in the parameters of selection (loss_params of relabel), or labels will be expected'
            " that are not there"
        )


def _norms_stay(method: Method, plan: Stage) -> bool:
    """Whether no batch norm learns anew, or none is there; one outside of a `Network` is never kept from it."""
    nets = [net for _, net in method.networks()]
    frozen: Any = "all" if plan.freeze < 0 else plan.freeze
    learning = [norm for net in nets for norm in net.learning_norms(frozen, plan.keep_norms(net.backbone.pretrained))]
    inside = {module for net in nets for module in net.modules()}
    outside = [norm for norm in method.modules() if isinstance(norm, _BatchNorm) and norm not in inside]
    return not learning and not outside


def _never(part: Late, epochs: int) -> str:
    count = f"{part.after} epoch{'s' * (part.after > 1)}"
    smaller = f", or a smaller {part.parameter}" if part.parameter else ""
    there = f"there {'are' if epochs > 1 else 'is'} {epochs}"
    return f"{part.what}: that begins after {count} and {there}; give {part.after + 1} or more{smaller}"
