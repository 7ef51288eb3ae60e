"""Downloads a file of weights into a cache folder: whole and with the right hash, or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from pluralis.errors import WeightsError

_CHUNK = 1 << 20
_TIMEOUT_S = 30.0


def cache_folder() -> Path:
    """`$PLURALIS_CACHE`, or `~/.cache/pluralis/weights`."""
    folder = os.environ.get("PLURALIS_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "pluralis" / "weights"


def download(url: str, sha256_prefix: str, folder: Path, timeout_s: float = _TIMEOUT_S) -> Path:
    """The file of `url` in `folder`, whose sha256 starts with `sha256_prefix`; downloaded if not there yet.

    Goes through a temporary file in the same folder, so that a name in the cache always means a whole file.
    A cached file with another hash is downloaded again.
    """
    target = folder / url.rsplit("/", 1)[-1]
    try:
        if target.is_file() and file_sha256(target).startswith(sha256_prefix):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=folder)
    except OSError as error:
        raise WeightsError(
            f"cannot use the weights cache {folder} ({error}): set PLURALIS_CACHE to a writable folder"
        ) from error
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _fetch(url, file, timeout_s)
            file.flush()
            os.fsync(file.fileno())
        if not digest.startswith(sha256_prefix):
            raise WeightsError(
                f"the download of {url} has sha256 {digest[:16]}... instead of {sha256_prefix}...: it was "
                "altered on the way, so try again or give the path of a local file as weights"
            )
        os.replace(part, target)
    except urllib.error.HTTPError as error:
        raise WeightsError(
            f"{url} answered HTTP {error.code} ({error.reason}): try again later or give the path of a local "
            "file as weights"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise WeightsError(
            f"cannot download {url} to {folder} ({reason}): check the network and the disk, or give the path "
            "of a local file as weights"
        ) from error
    finally:
        part.unlink(missing_ok=True)  # gone already after os.replace
    return target


def _fetch(url: str, file: BinaryIO, timeout_s: float) -> str:
    """Streams `url` into `file` and returns the hex sha256; a connection that ends early is an error."""
    digest = hashlib.sha256()
    received = 0
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        stated = response.headers.get("Content-Length")
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
    # Reading in pieces does not raise IncompleteRead in every Python version, so count.
    if stated is not None and stated.isdigit() and received != int(stated):
        raise http.client.IncompleteRead(b"", int(stated) - received)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
