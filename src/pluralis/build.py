"""From a recipe to networks and to a method with its starting weights."""

from __future__ import annotations

import torch

from pluralis.config import ModelPart, Recipe
from pluralis.labels import Labels
from pluralis.method import Method, Setup
from pluralis.methods import create_method, start_heads
from pluralis.models import Network, create_model
from pluralis.seeding import derive


def make_network(part: ModelPart, classes: int, weights: str | None = None) -> Network:
    """The network of a recipe, from these weights or from none."""
    return create_model(
        part.backbone,
        classes,
        part.head,
        weights,
        sha256=part.sha256 or None if weights else None,
        dropout=part.dropout or 0.0,
        drop_path=part.drop_path,
        head_params=part.head_params,
    )


def make_setup(
    recipe: Recipe, classes: int, weights: str | None, labels: Labels | None = None, further_images: int = 0
) -> Setup:
    return Setup(lambda: make_network(recipe.model, classes, weights), classes, labels, further_images)


def make_method(recipe: Recipe, labels: Labels, further_images: int = 0) -> Method:
    """The method with its starting weights: a function of the recipe, the labels and the number of images alone."""
    torch.manual_seed(derive(recipe.run.seed, "weights"))
    setup = make_setup(recipe, len(labels.classes), recipe.model.weights or None, labels, further_images)
    method = create_method(recipe.method.name, setup, recipe.method.params)
    for _, net in method.networks():  # a wrong number shows before any work
        net.freeze("all" if recipe.train.freeze < 0 else recipe.train.freeze)
    start_heads(method, labels, recipe.method.start_bias)
    return method
