"""Features of VOC 2012 by a frozen network, and complete labels; what is in the cache is not worked out again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from pluralis.config import DataPart
from pluralis.data.source import load_source
from pluralis.features import FeatureCache, default_cache
from pluralis.labels import Labels
from pluralis.models import create_model

Part = tuple[npt.NDArray[np.float32], Labels]


def read_voc(images: str, cache: Path | None) -> tuple[Part, Part]:
    """Pooled features [N, 1280] of EfficientNet-Lite0 at 256 px and labels: 5,717 training and 5,823 test images."""
    net = create_model("efficientnet_lite0", 20, weights="imagenet")
    store = FeatureCache(cache or default_cache(), net, 256)

    def part(name: str) -> Part:
        source = load_source(DataPart("voc", images, options={"split": name, "difficult": "absent"}))
        return store.extract(source.images, workers=2).features.numpy(), source.labels

    return part("train"), part("val")
