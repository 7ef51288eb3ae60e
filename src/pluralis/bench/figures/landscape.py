"""The loss around the trained weights, along random directions (Zhou et al., ECCV 2022, Figure 5).

Directions are filter-normalised: Li et al., Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pluralis.bench.figures.canvas import legend, looks, new_figure, shorten
from pluralis.bench.figures.predicted import load, logits, once
from pluralis.bench.figures.stored import describe, each_that_can, kept_by_name
from pluralis.errors import RecipeError
from pluralis.params import choice, number, whole

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    from pluralis.bench.store import Result

Floats = npt.NDArray[np.float64]
_OWNER = "figure landscape"


@dataclass(frozen=True)
class Landscape:
    """The loss at w + λ₁d₁ [+ λ₂d₂]: [L] or [L, L] values over the strengths λ [L]."""

    strengths: Floats
    loss: Floats


def filter_normalised(weights: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """A random direction whose every filter has the norm of that filter: d_i ← d_i / ‖d_i‖ · ‖w_i‖.

    A filter is w[i], of a convolution or of a linear layer. What has one dimension (biases, batch norm) stays.

    >>> import torch
    >>> way = filter_normalised({"w": torch.tensor([[3.0, 4.0]]), "b": torch.ones(2)}, torch.Generator())
    >>> float(way["w"].norm()), way["b"].tolist()
    (5.0, [0.0, 0.0])
    """
    import torch

    found = {}
    for name, weight in weights.items():
        if weight.dim() < 2:
            found[name] = torch.zeros_like(weight)
            continue
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        norms = drawn.flatten(1).norm(dim=1), weight.detach().double().cpu().flatten(1).norm(dim=1)
        scale = (norms[1] / norms[0]).view(-1, *[1] * (weight.dim() - 1))
        found[name] = (drawn * scale).to(weight)
    return found


def landscape(
    loss: Callable[[], float],
    weights: Mapping[str, Tensor],
    directions: Sequence[Mapping[str, Tensor]],
    strengths: Floats,
) -> Landscape:
    """`loss()` for every combination of strengths along the directions; the weights are as before at the end."""
    import torch

    shape = (len(strengths),) * len(directions)
    values = np.empty(shape)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    try:
        with torch.no_grad():
            for place in np.ndindex(*shape):
                for name, weight in weights.items():
                    moved = before[name].clone()
                    for step, way in zip(place, directions, strict=True):
                        moved.add_(way[name], alpha=float(strengths[step]))
                    weight.copy_(moved)
                values[place] = loss()
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(before[name])
    return Landscape(strengths, values)


def run_landscape(
    run: Result, dimensions: int, strengths: Floats, images: int, loss: str = "", seed: int = 0
) -> Landscape:
    """The loss of a kept run on some of its training rows: that which it was trained with, or another by name."""
    import torch

    from pluralis.losses import create_loss
    from pluralis.method import LossMethod
    from pluralis.seeding import generator
    from pluralis.trained_run import make_loader

    trained, split = load(run)
    every = len(split.train.labels)
    source = split.train.select(np.unique(np.linspace(0, every - 1, min(images, every)).astype(int)))
    recipe = replace(trained.recipe, run=replace(trained.recipe.run, decoded=""))  # kept where the run was made
    data = make_loader(source, recipe, next(trained.method.parameters()).device, cache="ram")
    if loss:
        function: torch.nn.Module = create_loss(loss)
        function.start(split.train.labels)  # type: ignore[operator]
    elif isinstance(trained.method, LossMethod):
        function = trained.method.loss.cpu()
    else:
        raise RecipeError(
            f"{describe(run)} trains with more than a loss of labels and logits: leave it out with rows = […], or name"
            ' a loss for all rows, such as loss = "an"'
        )
    function.eval()
    labels, epochs = torch.from_numpy(source.labels.dense()), trained.recipe.train.epochs
    weights = {
        f"{place}.{name}": weight for place, net in trained.method.networks() for name, weight in net.named_parameters()
    }

    def value() -> float:
        found = logits(trained, data).double()
        return float(function(found, labels, epoch=epochs - 1, epochs=epochs))

    ways = [filter_normalised(weights, generator(seed, "landscape", n)) for n in range(dimensions)]
    return landscape(value, weights, ways, strengths)


def kept_landscape(run: Result, dimensions: int, strengths: Floats, images: int, loss: str) -> Landscape:
    """The same, made once for these settings."""
    import torch

    def make() -> dict[str, Tensor]:
        return {"loss": torch.from_numpy(run_landscape(run, dimensions, strengths, images, loss).loss)}

    name = f"landscape-{dimensions}-{strengths[-1]:g}-{len(strengths)}-{images}-{loss or 'own'}"
    return Landscape(strengths, once(run, name, make)["loss"].numpy())


def draw_landscape(
    runs: Sequence[Result],
    dimensions: int = 1,
    reach: float = 1.0,
    steps: int = 21,
    images: int = 500,
    loss: str = "",
) -> Figure:
    """The training loss around the trained weights, along random filter-normalised directions (Zhou et al., ECCV 2022,
    Figure 5).

    Of some training images and the first kept run of a row, from −`reach` to `reach` times the size of the weights: a
    line for each row, or with two dimensions a panel. `loss` stands in for the runs' own, for methods that are more
    than a loss.
    """
    from pluralis.losses import LOSSES

    dimensions = whole(_OWNER, "dimensions", dimensions, low=1, high=2)
    strengths = np.linspace(-1, 1, whole(_OWNER, "steps", steps, low=3, high=201)) * number(
        _OWNER, "reach", reach, above=0.0
    )
    images = whole(_OWNER, "images", images, low=1)
    if loss:
        choice(_OWNER, "loss", loss, LOSSES)
    found, left = each_that_can(
        kept_by_name(runs), lambda group: kept_landscape(group[0], dimensions, strengths, images, loss)
    )
    figure = draw_one(found) if dimensions == 1 else draw_two(found)
    figure.set_label(left)
    return figure


def draw_one(found: Mapping[str, Landscape]) -> Figure:
    figure, (axes,) = new_figure()
    for (name, line), look in zip(found.items(), looks(found).values(), strict=True):
        axes.plot(line.strengths, line.loss, label=name, **{**look, "marker": None})
    axes.set(xlabel="strength λ of the change of weights", ylabel="training loss")
    legend(figure, axes)
    return figure


def draw_two(found: Mapping[str, Landscape]) -> Figure:
    """Panels share one scale of colours for the rise above the lowest loss of each, so that widths can be compared."""
    figure, panels = new_figure(len(found), size=(3.2, 3.0))
    rise = {name: one.loss - one.loss.min() for name, one in found.items()}
    highest = max(float(np.quantile(values, 0.9)) for values in rise.values()) or 1.0
    levels = np.linspace(0, highest, 13)
    for axes, (name, one) in zip(panels, found.items(), strict=True):
        drawn = axes.contourf(one.strengths, one.strengths, rise[name].T, levels=levels, cmap="cividis", extend="max")
        axes.set_title(shorten(name), fontsize=10)
        axes.set(xlabel="λ₁", ylabel="λ₂")
        axes.grid(visible=False)
    figure.colorbar(drawn, ax=panels, label="training loss above its lowest", format="%.2g")
    return figure
