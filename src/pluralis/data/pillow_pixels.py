"""The pixels of a Pillow image where they lie, by the Arrow C data interface.

Pillow's other ways out move every pixel two or three times, which takes a tenth as long as decoding a JPEG.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor


class _ArrowArray(ctypes.Structure):
    """As https://arrow.apache.org/docs/format/CDataInterface.html has it."""


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def quads(image: Image.Image) -> Tensor:
    """The image of mode RGB as uint8 [height, width, 4], of which the last number says nothing; not to be written to.

    It may be the memory of the image itself: what is later painted there shows.

    >>> quads(Image.new("RGB", (3, 2), (7, 8, 9)))[1, 2, :3].tolist()
    [7, 8, 9]
    """
    shape = image.height, image.width, 4
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:  # a large one, which Pillow keeps in several pieces, or one whose rows have gaps between them
        return _copy(image, shape)
    values = _values(capsule)
    if not 0 < values.length == math.prod(shape):
        return _copy(image, shape)
    pixels = (ctypes.c_uint8 * values.length).from_address(values.buffers[1])
    pixels.owner = capsule  # whose end lets Pillow free the memory
    return torch.frombuffer(pixels, dtype=torch.uint8).view(shape)


def _copy(image: Image.Image, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.frombuffer(image.tobytes("raw", "RGBX"), np.uint8).copy()).view(shape)


def _values(capsule: object) -> _ArrowArray:
    """What a list of lists of fixed length holds."""
    array = ctypes.cast(_pointer(capsule, b"arrow_array"), ctypes.POINTER(_ArrowArray)).contents
    values: _ArrowArray = array.children[0].contents
    return values
