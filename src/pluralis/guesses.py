"""What a method guessed about unknown labels, for people to look at: how much, when, and how much of it was right."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pluralis.checkpoint import Snapshot, read_snapshot, write_snapshot
from pluralis.errors import CheckpointError, LabelError
from pluralis.labels import Labels
from pluralis.method import Method
from pluralis.state import LabelState

Table = list[dict[str, float | None]]

_SOFT = "soft_labels"  # beside the model, in the folder of a run


def write_guesses(path: Path, method: Method, labels: Labels, truth: Labels | None) -> dict[str, Table]:
    """Write every guess and when it was made to `path`.safetensors, and a table by epoch to `path`.json beside it.

    Without the truth the table tells how many were made; with it (a protocol hid labels that are known) also how many
    were right. Gives the tables, by what the guesses say: `absent` or `present`.
    """
    known = truth if truth is not None else labels
    states = method.guessed().items()
    tables = {what: assignment_table(state, known, what == "present") for what, state in states}
    tensors = {f"{what}.{name}": tensor for what, state in states for name, tensor in state.state_dict().items()}
    meta = {"classes": list(labels.classes), "rows": list(labels.ids), "guesses by epoch": tables}
    write_snapshot(path, Snapshot(tensors, meta))
    return tables


def write_soft_labels(folder: Path, soft: LabelState, labels: Labels) -> Path:
    """Keep the soft labels that the last stage of a run learned, as it had them: 2 bytes an entry, in the run's folder.

    Of the rows of `labels`, that is: those of which there is only the image come after them.

    >>> from tempfile import TemporaryDirectory
    >>> labels = Labels.from_lists([[0], [1]], 2)
    >>> soft = LabelState(2, 2)
    >>> soft.assign(torch.tensor([1]), 0, torch.tensor([0.25]), epoch=1)
    >>> with TemporaryDirectory() as folder:
    ...     _ = write_soft_labels(Path(folder), soft, labels)
    ...     read_soft_labels(Path(folder), labels).tolist()
    [[1.0, 0.0], [0.25, 1.0]]
    """
    meta = {"classes": list(labels.classes), "rows": list(labels.ids)}
    write_snapshot(folder / _SOFT, Snapshot({"chance": soft.value[: len(labels)].contiguous()}, meta))
    return folder / f"{_SOFT}.safetensors"


def read_soft_labels(folder: Path, labels: Labels) -> Tensor:
    """[N, C] of these training rows: 1 on written labels, 0 on verified absent ones, what was learned on the rest."""
    if not (folder / f"{_SOFT}.json").exists():
        raise CheckpointError(
            f"{folder} holds no labels that a stage worked out for the next: only runs of the method relabel do, and"
            " those of older versions did not keep them"
        )
    found = read_snapshot(folder / _SOFT)
    if (found.meta["classes"], found.meta["rows"]) != (list(labels.classes), list(labels.ids)):
        raise CheckpointError(f"{folder / _SOFT}.json is of other rows or classes than the run's: put the data back")
    given = torch.from_numpy(labels.dense())
    return torch.where(given == 0, found.tensors["chance"].float(), (given > 0).float())


def assignment_table(state: LabelState, truth: Labels | Tensor, present: bool = False) -> Table:
    """How many labels were guessed for each epoch and how many of them are right, as in the paper's Tables 4 and 7.

    truth: the complete labels, [N, C] in {+1, 0, −1}; where it is 0 a guess is counted as assigned but not as known.
    present: the guesses say that the label is present (the paper's Table 7), not that it is absent.
    Each row has `epoch` (counted from 1) from which the labels are used, `assigned`, `known`, `right`, and `accuracy`,
    which is right over known of this and all earlier rows (None before the first that is known).

    >>> state = LabelState(2, 2)
    >>> state.assign(torch.tensor([0, 1]), 1, torch.tensor([0.1, 0.2]), epoch=4)
    >>> assignment_table(state, torch.tensor([[1, -1], [1, 1]]))
    [{'epoch': 5, 'assigned': 2, 'known': 2, 'right': 1, 'accuracy': 0.5}]
    """
    given = torch.from_numpy(truth.dense()) if isinstance(truth, Labels) else truth.cpu()
    since = state.since.cpu()
    if given.shape != since.shape:
        raise LabelError(
            f"the guesses have shape {tuple(since.shape)} but the truth {tuple(given.shape)}; "
            "give the complete labels of the training rows"
        )
    right = given > 0 if present else given < 0
    parts = since.flatten(), since[given != 0], since[right]
    counts = torch.stack([entries.bincount(minlength=256) for entries in parts])
    counts[:, 0] = 0
    running = counts.double().cumsum(1)
    return [
        {
            "epoch": epoch,
            "assigned": int(counts[0, epoch]),
            "known": int(counts[1, epoch]),
            "right": int(counts[2, epoch]),
            "accuracy": float(running[2, epoch] / running[1, epoch]) if running[1, epoch] else None,
        }
        for epoch in counts[0].nonzero().flatten().tolist()
    ]
