"""The picture of the README, from a finished demo: `python docs/picture.py runs/demo docs/images/demo.png`."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from pluralis.data.loader import TensorImages
from pluralis.data.protocols import single_positive
from pluralis.data.scenes import make_scenes
from pluralis.labels import Labels
from pluralis.trained_run import load_run

COUNT = 8
METHODS = ("an", "relabel")


def main(folder: Path, out: Path) -> None:
    scenes = make_scenes("test", COUNT)
    labels = Labels.from_dense(scenes.truth, scenes.classes)
    given = single_positive(labels)
    images = TensorImages(scenes.images)
    found = {name: load_run(folder / f"{name}-0").probabilities(images) for name in METHODS}
    figure, axes = plt.subplots(2, COUNT // 2, figsize=(10, 7))
    for row, axis in enumerate(axes.flat):
        axis.imshow(scenes.images[row].permute(1, 2, 0).numpy())
        axis.axis("off")
        lines = [
            f"written down: {scenes.classes[given.positives(row)[0]]}",
            f"true: {' '.join(scenes.classes[c] for c in labels.positives(row))}",
            *(
                f"{name} finds: {' '.join(c for c, p in zip(scenes.classes, f[row], strict=True) if p >= 0.5)}"
                for name, f in found.items()
            ),
        ]
        axis.set_title("\n".join(lines), fontsize=10, loc="left", family="monospace")
    figure.tight_layout(h_pad=2.5)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
