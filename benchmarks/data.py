"""How fast data comes in: readers in MB/s with their peak memory, and images as ratios to bare Pillow, in one run.

    python -m benchmarks.data                              # generated JPEGs of 500 × 375 pixels
    python -m benchmarks.data --images FOLDER --count 5000 # your own
    python -m benchmarks.data --images 'shards/{000..009}.tar'
    python -m benchmarks.data --huge                       # label files of a million images instead

Bare Pillow is `Image.open(file).convert("RGB")` and `np.asarray`, without resizing, in as many fresh processes as the
loader has workers. The loader decodes, squashes to squares, augments and puts batches together; what it takes to start
its workers counts. All ways take turns in each round; a ratio is that of the two in one round, and medians are shown:
of the time that passed, and of the processor time of all processes, which other work on the machine disturbs less.
Without a GPU the cores that decode augment too: the line without it tells what the loader itself costs.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks import huge_labels
from benchmarks.bare_pillow import bare_pillow
from pluralis.data import write
from pluralis.data.dataset import Dataset
from pluralis.data.formats import FORMATS
from pluralis.data.image_endings import ENDINGS
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Images, Loader
from pluralis.data.shard_images import ShardImages, pictures
from pluralis.data.shards import Shards, is_shards
from pluralis.labels import Labels
from pluralis.method import Clock
from pluralis.runtime import choose_device
from pluralis.stage import Stage

GOAL = 0.85
BATCH = Stage().batch_size
CHILD = """
import json, sys, time
from benchmarks.memory import peak_megabytes as peak
from pluralis.data import read
name, path, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
before, start = peak(), time.process_time()
data = read(name, path, **options)
print(json.dumps([time.process_time() - start, peak() - before, len(data.labels)]))
"""


def main(
    images: str = "",
    count: int = 2000,
    size: int = 224,
    workers: int = 2,
    rounds: int = 3,
    device: str = "auto",
    rows: int = 100_000,
    readers: bool = True,
    json_file: str = "",
    huge: bool = False,
) -> dict[str, Any]:
    if huge:
        return huge_labels.main()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PLURALIS_CACHE"] = f"{scratch}/cache"
        speed = measure_images(Path(scratch), images, count, size, workers, rounds, choose_device(device))
        result: dict[str, Any] = {"images/s": speed}
        if readers:
            result["readers"] = measure_readers(Path(scratch) / "labels", rows)
    if json_file:
        Path(json_file).write_text(json.dumps(result, indent=1), encoding="utf-8")
    return result


def measure_images(
    scratch: Path, where: str, count: int, size: int, workers: int, rounds: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """Images a second of every way to come by them, and ratios to Pillow."""
    source = find_images(where, count) if where else ImageFiles(make_images(scratch / "images", count))
    files = source.paths if isinstance(source, ImageFiles) else unpack(scratch / "images", source)
    shards = pack(scratch / "shards", files) if isinstance(source, ImageFiles) else source
    labels = Labels.from_lists([[0]] * len(source), 2)
    ways: dict[str, Callable[[], float]] = {}
    start = time.perf_counter()
    for name, images, cache, augment in (
        ("loader", source, "none", "crop"),
        ("not augmented", source, "none", "none"),
        ("from shards", shards, "none", "crop"),
        ("cached on disk", source, "disk", "crop"),
        ("cached in RAM", source, "ram", "crop"),
    ):
        loader = Loader(images, labels, size=size, cache=cache, workers=workers, device=device)
        ways[name] = partial(_epoch, loader, augment)
    print(f"{len(source)} images, {workers} workers, {device}; caches filled in {time.perf_counter() - start:.1f} s")
    passed: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    with bare_pillow(files, max(workers, 1)) as bare, bare_pillow(files, max(workers, 1), keep=True) as kept:
        for number in range(rounds + 1):  # the first round warms up
            for name, run in {"Pillow": bare, **ways, "Pillow, memory kept": kept}.items():
                start = time.perf_counter()
                seconds = run()
                if number:
                    passed.setdefault(name, []).append(time.perf_counter() - start)
                    used.setdefault(name, []).append(seconds)
    found = {}
    for name in passed:
        found[name] = {
            "images/s": len(source) / statistics.median(passed[name]),
            "of Pillow": _ratio(passed["Pillow"], passed[name]),
            "CPU ms": 1e3 * statistics.median(used[name]) / len(source),
            "of Pillow's CPU": _ratio(used["Pillow"], used[name]),
        }
        speed, ratio, cpu, cpu_ratio = found[name].values()
        goal = f", goal {GOAL}" if name == "loader" else ""
        print(f"{name:20} {speed:5.0f} images/s, {ratio:.2f} of Pillow; {cpu:.2f} ms CPU each, {cpu_ratio:.2f}{goal}")
    return found


def _ratio(bare: list[float], ours: list[float]) -> float:
    """How fast compared with bare Pillow, round by round."""
    return statistics.median(a / b for a, b in zip(bare, ours, strict=True))


def _epoch(loader: Loader, augment: str) -> float:
    """The processor time of an epoch, with that of the workers, which have ended with it."""
    start = _cpu()
    for _ in loader.batches(BATCH, [augment], 0, Clock()):
        pass
    if loader.device.type == "cuda":
        torch.cuda.synchronize()
    return _cpu() - start


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def make_images(folder: Path, count: int) -> list[Path]:
    """JPEGs of about 40 kB, smooth with some noise, as photos are."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    paths = [folder / f"{number:06}.jpg" for number in range(count)]
    for path in paths:
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
        smooth = coarse.resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth, np.int16) + random.integers(-12, 13, (375, 500, 3), np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=85)
    return paths


def find_images(where: str, count: int) -> Images:
    if is_shards(where):
        shards = Shards(where)
        names = sorted(name for name in shards.places if name.lower().endswith(ENDINGS))[:count]
        return pictures(where, [shards.path(name) for name in names])
    return ImageFiles(sorted(path for path in Path(where).rglob("*") if path.suffix.lower() in ENDINGS)[:count])


def pack(folder: Path, paths: list[Path]) -> Images:
    """The same files in four tar files."""
    folder.mkdir()
    for number in range(4):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for path in paths[number::4]:
                tar.add(path, path.name)
    shards = Shards(folder)
    return pictures(folder, [shards.path(path.name) for path in paths])


def unpack(folder: Path, images: Images) -> list[Path]:
    """The images of shards as files."""
    assert isinstance(images, ShardImages)
    folder.mkdir()
    files = [folder / f"{row:06}{Path(images.names[row]).suffix}" for row in range(len(images))]
    for row, file in enumerate(files):
        file.write_bytes(images.content(row))
    return files


def measure_readers(folder: Path, rows: int) -> dict[str, dict[str, float]]:
    """Seconds, MB/s and peak memory of reading `rows` images with three positives each out of 80 classes."""
    (folder / "images").mkdir(parents=True)
    names = [f"{row:07}.jpg" for row in range(rows)]
    for name in names:
        (folder / "images" / name).touch()
    draws = np.sort(np.random.default_rng(0).integers(0, 26, (rows, 3)) + np.array([0, 27, 54]), 1)
    labels = Labels.from_lists(draws.tolist(), [f"class {number}" for number in range(80)], ids=names)
    data = Dataset([folder / "images" / name for name in names], labels)
    found = {}
    for name, entry in FORMATS.items():
        reading = inspect.signature(entry.read).parameters
        if entry.write is None or "images" not in reading or name == "npy":
            continue
        path = folder / f"labels.{name}"
        writing = inspect.signature(entry.write).parameters
        options = {"unlisted": "unknown", "images": str(folder / "images"), "suffix": ""}  # names have their ending
        start = time.process_time()
        try:
            write(name, path, data, **{key: options[key] for key in options.keys() & writing.keys()})
            written = time.process_time() - start
            chosen = json.dumps({key: options[key] for key in options.keys() & reading.keys()})
            out = subprocess.run(
                [sys.executable, "-c", CHILD, name, str(path), chosen], capture_output=True, text=True, check=True
            ).stdout
        except Exception as error:  # a format that needs a package, or has a layout of its own
            print(f"{name:12} not measured: {str(getattr(error, 'stderr', '') or error).strip()[-150:]}")
            continue
        seconds, peak, count = json.loads(out)
        size = path.stat().st_size / 1e6
        found[name] = {"seconds": seconds, "MB/s": size / seconds, "peak MB": peak, "write seconds": written}
        print(
            f"{name:12} {size:7.1f} MB, {count:,} rows: {seconds:5.2f} s, {size / seconds:6.1f} MB/s, "
            f"{peak:5.0f} MB of memory; written in {written:.2f} s"
        )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, parameter in inspect.signature(main).parameters.items():
        if isinstance(parameter.default, bool):
            parser.add_argument(f"--{option}", action=argparse.BooleanOptionalAction, default=parameter.default)
        else:
            name = f"--{option.replace('_', '-')}"
            parser.add_argument(name, type=type(parameter.default), default=parameter.default)
    main(**vars(parser.parse_args()))
