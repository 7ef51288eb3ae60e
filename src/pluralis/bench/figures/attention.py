"""Where each label looks: maps of the label decoder's attention over the picture (LAC, Xie et al., 2022, Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import new_figure, shorten
from pluralis.bench.figures.predicted import PARTS, load
from pluralis.bench.figures.stored import describe, kept_by_name
from pluralis.errors import DataError
from pluralis.params import choice, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pluralis.bench.store import Result

_OWNER = "figure attention"


@dataclass(frozen=True)
class Attention:
    """One picture and the labels whose maps are shown: those that were written first, then the most probable."""

    picture: npt.NDArray[np.uint8]  # [H, W, 3]
    name: str
    labels: tuple[str, ...]  # [L]
    p: npt.NDArray[np.float64]  # [L]
    written: tuple[bool, ...]  # [L] by somebody, for a training row
    maps: npt.NDArray[np.float64]  # [L, h, w], each sums to 1


def attention(run: Result, count: int = 4, labels: int = 3, part: str = "train") -> list[Attention]:
    """The maps of the `count` pictures with most labels, from a run with the label decoder."""
    import torch

    from pluralis.models.label_decoder import LabelDecoder

    choice(_OWNER, "part", part, PARTS)
    trained, split = load(run)
    _, net = next(trained.method.networks())
    if not isinstance(net.head, LabelDecoder):
        raise DataError(f'{describe(run)} has no attention maps: set model.head = "label-decoder", or leave it out')
    source = split.train if part == "train" else split.test
    if source is None:
        raise DataError(f'{describe(run)} has no test set: use part = "train"')
    truth = split.truth if part == "train" and split.truth is not None else source.labels
    crowded = np.argsort(-truth.summary().row_positives, kind="stable")[:count]  # most to look for
    rows = torch.from_numpy(np.sort(crowded))
    found = []
    with torch.no_grad():
        for index, pixels in trained.loader(source).in_order(32, rows):
            features = net.features(pixels)
            p, maps = net.head(features).double().sigmoid().cpu(), net.head.attention(features).double().cpu()
            for place, row in enumerate(index.tolist()):
                written = source.labels.dense([row])[0] > 0 if part == "train" else np.zeros(p.shape[1], bool)
                order = np.lexsort((-p[place].numpy(), ~written))[:labels]
                found.append(
                    Attention(
                        pixels[place].clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy(),
                        source.images.name(row),
                        tuple(trained.classes[c] for c in order),
                        p[place].numpy()[order],
                        tuple(bool(written[c]) for c in order),
                        maps[place].numpy()[order],
                    )
                )
    return found


def draw_attention(runs: Sequence[Result], count: int = 4, labels: int = 3, part: str = "train") -> Figure:
    """Where each label looks: written ones first, then the most probable (LAC, Xie et al., NeurIPS 2022, Figure 6).

    From the first kept run that has a label decoder; of `count` pictures, the ones with most labels.
    """
    count, labels = whole(_OWNER, "count", count, low=1, high=100), whole(_OWNER, "labels", labels, low=1, high=20)
    every = [run for group in kept_by_name(runs).values() for run in group]
    has = [run for run in every if (run.recipe.get("model") or {}).get("head") == "label-decoder"]
    found = attention((has or every)[0], count, labels, part)
    columns = 1 + max(len(one.labels) for one in found)
    figure, panels = new_figure(len(found) * columns, columns=columns, size=(1.7, 1.9))
    for axes in panels:
        axes.set_axis_off()
    for place, one in enumerate(found):
        line = panels[place * columns :]
        line[0].imshow(one.picture)
        line[0].set_title(shorten(one.name, 18), fontsize=8)
        height, width = one.picture.shape[:2]
        grey = one.picture.mean(2)
        for axes, label, p, written, one_map in zip(line[1:], one.labels, one.p, one.written, one.maps, strict=False):
            axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
            axes.imshow(
                one_map,
                cmap="inferno",
                alpha=0.6,
                extent=(-0.5, width - 0.5, height - 0.5, -0.5),
                interpolation="bilinear",
            )
            axes.set_title(f"{shorten(label, 14)}, {'written' if written else f'p = {p:.2f}'}", fontsize=8)
    return figure
