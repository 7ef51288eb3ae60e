"""NUS-WIDE (Chua et al., 2009): a list of images, and for each concept a file with one 0 or 1 a line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pluralis.data.dataset import Dataset
from pluralis.data.formats.listing import check_images, left_out, locate
from pluralis.data.formats.text_lines import lines
from pluralis.data.safe_io import own_file
from pluralis.errors import DataError
from pluralis.labels import Labels

_VALUES = {"1": 1, "0": -1}


def read(
    path: str | Path,
    images: str | Path | None = None,
    split: str = "train",
    damaged: str = "error",
    missing: str = "error",
) -> Dataset:
    """Read the images and the complete labels of one split, "train", "test" or "all".

    `path` is a folder with `ImageList/TrainImagelist.txt` and `Groundtruth/TrainTestLabels/Labels_<concept>_Train.txt`
    (for "all": `Imagelist.txt` and `AllLabels/Labels_<concept>.txt`). Line n of every file is image n. The names
    start from the folder `images`, if it is not `Flickr` or `images` below `path`. Classes are in the order of
    `Concepts81.txt` if that is there, else sorted.

    A value that is neither 0 nor 1 is an error, or unknown with `damaged` = "unknown": the published file of the
    concept lake has one. `missing` = "drop" leaves out the images whose files are not there, as many have vanished
    from the web. The id of an image is its name; rows keep the order of the list.
    """
    if split not in ("train", "test", "all"):
        raise DataError(f"split={split!r} is not possible; choose 'train', 'test' or 'all'")
    if damaged not in ("error", "unknown") or missing not in ("error", "drop"):
        raise DataError(f"damaged={damaged!r}, missing={missing!r}: choose 'error' or 'unknown', and 'error' or 'drop'")
    root = Path(path)
    word = "" if split == "all" else split.capitalize()
    listing = _first(root, f"{word}Imagelist.txt", "ImageList", ".")
    ids = _names(listing)
    concepts = _concepts(root, word)
    signed = np.empty((len(ids), len(concepts)), np.int8)
    for column, file in enumerate(concepts.values()):
        signed[:, column] = _values(file, listing, len(ids), damaged)
    unknown = int((signed == 0).sum())
    notes = (f"{root}: {unknown:,} labels are neither 0 nor 1, and are taken as unknown",) if unknown else ()
    beside = next((root / name for name in ("Flickr", "images", "Images") if (root / name).is_dir()), None)
    folder = check_images(beside if images is None else images, listing)
    rows, found = locate(folder, ids, listing, drop=missing == "drop")
    labels = _labels(signed[rows], list(concepts), [ids[row] for row in rows])
    return Dataset(found, labels, notes=(*notes, *left_out(listing, ids, rows, folder)))


def _labels(signed: npt.NDArray[np.int8], classes: list[str], ids: list[str]) -> Labels:
    known = signed != 0
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(known.sum(1))])
    columns = np.broadcast_to(np.arange(len(classes), dtype=np.int32), signed.shape)
    return Labels(indptr, columns[known], signed[known], classes, ids)


def _first(root: Path, name: str, *folders: str) -> Path:
    found = next((root / folder / name for folder in folders if (root / folder / name).is_file()), None)
    if found is None:
        raise DataError(f"{root}: there is no {folders[0]}/{name}; give the folder of the unpacked lists")
    return own_file(root, found)


def _concepts(root: Path, word: str) -> dict[str, Path]:
    """Concept -> its file of labels."""
    end = f"_{word}.txt" if word else ".txt"
    inside = "TrainTestLabels" if word else "AllLabels"
    for folder in (root / "Groundtruth" / inside, root / inside):
        found = folder.glob(f"Labels_?*{end}")
        files = {p.name.removeprefix("Labels_").removesuffix(end): own_file(root, p) for p in found}
        if files:
            break
    else:
        raise DataError(f"{root}: there is no Groundtruth/{inside}/Labels_<concept>{end}; unpack the ground truth")
    lists = [root / folder / "Concepts81.txt" for folder in ("ConceptsList", "Concepts", ".")]
    listed = next((file for file in lists if file.is_file()), None)
    if listed is None:
        return dict(sorted(files.items()))
    order = [name for _, name in lines(own_file(root, listed))]
    if sorted(order) != sorted(files):
        differ = sorted(set(order) ^ set(files)) or ["a concept twice"]
        raise DataError(f"{listed}: its concepts are not those of the labels ({differ[0][:80]!r}); unpack them again")
    return {name: files[name] for name in order}


def _names(path: Path) -> list[str]:
    """The images of a list, with slashes for its backslashes."""
    first: dict[str, int] = {}
    for number, text in lines(path):
        name = re.sub(r"\\+", "/", text)
        if first.setdefault(name, number) != number:
            raise DataError(f"{path}, line {number}: image {name[:80]!r} is in line {first[name]} too; keep one")
    if not first:
        raise DataError(f"{path}: the list is empty; unpack the lists again")
    return list(first)


def _values(path: Path, listing: Path, count: int, damaged: str) -> npt.NDArray[np.int8]:
    """[count] 1, -1 or 0 unknown."""
    values = []
    for number, text in lines(path):
        value = _VALUES.get(text)
        if value is None and damaged == "error":
            raise DataError(
                f"{path}, line {number}: {text[:40]!r} is neither 0 nor 1; mend the line, or leave such labels unknown "
                "(damaged='unknown')"
            )
        values.append(value or 0)
    if len(values) != count:
        raise DataError(f"{path}: {len(values)} lines for the {count} images of {listing.name}; unpack the lists again")
    return np.array(values, np.int8)
