"""Every method by name. A plain loss is a method too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pluralis.errors import RecipeError, nearest
from pluralis.losses import LOSSES, create_loss
from pluralis.method import LossMethod, Method, Setup
from pluralis.methods.cls import CLS
from pluralis.methods.co_teaching import CoTeaching, CoTeachingPlus, Decoupling, JoCoR
from pluralis.methods.em_apl import EmApl
from pluralis.methods.en import ExpectedNegatives
from pluralis.methods.lac import LAC
from pluralis.methods.large_loss import LargeLossCp
from pluralis.methods.penalty import L1R, L2R
from pluralis.methods.pu_mlc import PUMLC, VPU
from pluralis.methods.relabel import Relabel
from pluralis.methods.role import Role
from pluralis.methods.start import START_BIASES as START_BIASES
from pluralis.methods.start import start_bias as start_bias
from pluralis.methods.start import start_heads as start_heads
from pluralis.methods.start import start_values as start_values

SYSTEMS: dict[str, Callable[..., Method]] = {
    "cls": CLS,
    "co-teaching": CoTeaching,
    "co-teaching+": CoTeachingPlus,
    "decoupling": Decoupling,
    "em-apl": EmApl,
    "en": ExpectedNegatives,
    "jocor": JoCoR,
    "l1r": L1R,
    "l2r": L2R,
    "lac": LAC,
    "ll-cp": LargeLossCp,
    "pu-mlc": PUMLC,
    "relabel": Relabel,
    "role": Role,
    "vpu": VPU,
}
"""Methods that are more than a loss: name -> constructor (setup, **params)."""


def create_method(name: str, setup: Setup, params: dict[str, Any] | None = None) -> Method:
    """The named method over as many networks as it needs.

    Heads start at zero: `start_heads(method, labels)` gives them the bias that suits the method.

    >>> from pluralis import Labels, create_model
    >>> labels = Labels.from_lists([[0], [1], [2]], ["cat", "dog", "car"])
    >>> method = create_method("em", Setup(lambda: create_model("tiny", 3), 3, labels), {"alpha": 0.1})
    >>> start_heads(method, labels)
    >>> type(method).__name__, method.start_bias
    ('LossMethod', 'zero')
    """
    if not isinstance(setup, Setup):
        raise RecipeError(f"create_method: setup is {type(setup).__name__}; give Setup(make_net, classes, labels)")
    params = params or {}
    if setup.further_images:
        check_learns_images(name)
    if name in LOSSES:
        loss = create_loss(name, **params)
        if setup.labels is not None:
            loss.start(setup.labels)
        return LossMethod(setup.make_net(), loss)
    constructor = method_class(name)
    known = [p for p in inspect.signature(constructor).parameters if p != "setup"]
    for param in params:
        if param not in known:
            raise RecipeError(f"method {name}: unknown parameter {param!r}; {nearest(param, known)}")
    method: Method = constructor(setup, **params)
    return method


def check_learns_images(name: str) -> None:
    """Refuse to teach a method by images without labels that learns nothing from them."""
    if not learns_images(name):
        raise RecipeError(
            f"{name} learns nothing from images without labels: leave them out (select.images = false), or use relabel"
        )


def learns_images(name: str) -> bool:
    """Whether rows of which there is only the image can teach the method."""
    return bool(getattr(method_class(name), "learns_images", False))


def every_method() -> dict[str, Any]:
    """Name -> class of a loss or of a system."""
    return {**LOSSES, **SYSTEMS}


def method_class(name: str) -> Any:
    every = every_method()
    if name not in every:
        raise RecipeError(f"there is no method {name!r}; {nearest(name, every)}")
    return every[name]


def describe_methods() -> list[dict[str, Any]]:
    """Name, parameters with defaults, starting bias (and the one above a backbone that learns) and paper of each."""
    return [
        {
            "name": name,
            "parameters": {
                p.name: None if p.default is inspect.Parameter.empty else p.default
                for p in inspect.signature(entry).parameters.values()
                if p.name not in ("setup", "reduction")
            },
            "start_bias": entry.start_bias,
            "deep_start_bias": entry.deep_start_bias,
            "batch_coupled": entry.batch_coupled,
            "paper": entry.paper,
            "what": (inspect.getdoc(entry) or "").split("\n", 1)[0],
        }
        for name, entry in every_method().items()
    ]
