"""The picture of docs/default-method.md: `python docs/gradients.py docs/images/selection-gradient.png`."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from pluralis.losses import create_loss

EPOCHS = 10
OTHERS = {
    "all else is known": [],
    "one other unknown label, p = 0.9": [0.9],
    "five other unknown labels, p = 0.9": [0.9] * 5,
}


def gradient(name: str, p: Tensor, others: list[float] | None = None, epoch: int = 0) -> Tensor:
    """[N] what a loss does to the logit of an unknown label with each of the probabilities p [N], by autograd.

    The image has one written label beside it, and other unknown ones with the probabilities `others`.
    """
    others = others or []
    rows = torch.cat([torch.tensor([0.7]), torch.tensor([0.0]), torch.tensor(others)]).double().repeat(len(p), 1)
    rows[:, 1] = p
    z = torch.logit(rows).requires_grad_()
    labels = torch.tensor([1] + [0] * (1 + len(others))).repeat(len(p), 1)
    loss = create_loss(name)(z, labels, epoch=epoch, epochs=EPOCHS) * z.numel()  # a mean becomes a sum
    return torch.autograd.grad(loss, z)[0][:, 1]


def main(out: Path) -> None:
    p = torch.linspace(0.001, 0.999, 400, dtype=torch.float64)
    figure, axis = plt.subplots(figsize=(9.5, 4.5))
    axis.axhline(0, color="black", linewidth=0.8)
    axis.plot(p, gradient("an", p), color="tab:gray", linestyle="--", label="an: counts as absent")
    axis.plot(p, gradient("em", p), color="tab:green", linestyle="-.", label="em: entropy, α = 0.2")
    for epoch, style in ((0, ":"), (EPOCHS - 1, (0, (4, 1, 1, 1)))):
        what = f"gr: epoch {epoch + 1} of {EPOCHS}"
        axis.plot(p, gradient("gr", p, epoch=epoch), color="tab:orange", linestyle=style, label=what)
    for (what, others), shade in zip(OTHERS.items(), (1.0, 0.65, 0.35), strict=True):
        curve = gradient("selection", p, others)
        axis.plot(p, curve, color="tab:blue", alpha=shade, linewidth=2.2, label=f"selection: {what}")
    axis.set(xlim=(0, 1), ylim=(-0.13, 0.42), xlabel="probability p of an unknown label")
    axis.set_ylabel("gradient by its logit\n(above 0 the label is pushed down, below 0 up)")
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
