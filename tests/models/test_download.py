"""Downloads against a real server on this machine: whole, altered, cut off, missing, unreachable."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pluralis.errors import WeightsError
from pluralis.models.download import cache_folder, download, file_sha256

CONTENT = bytes(range(256)) * 9000  # more than one chunk
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PREFIX = SHA256[:8]


class Handler(BaseHTTPRequestHandler):
    hits: list[str]

    def do_GET(self) -> None:
        self.hits.append(self.path)
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        self.send_response(200)
        if not self.path.startswith("/unstated"):
            extra = 1000 if self.path.startswith("/cut") else 0
            self.send_header("Content-Length", str(len(CONTENT) + extra))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test output clean."""


class Server:
    def __init__(self) -> None:
        self.hits: list[str] = []
        handler = type("OneServersHandler", (Handler,), {"hits": self.hits})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_right_file_arrives_once(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    path = download(f"{server.url}/a-{PREFIX}.pth", PREFIX, folder)
    assert path == folder / f"a-{PREFIX}.pth"
    assert path.read_bytes() == CONTENT
    assert file_sha256(path) == SHA256
    assert files(folder) == [path.name]
    assert download(f"{server.url}/a-{PREFIX}.pth", PREFIX, folder) == path
    assert len(server.hits) == 1  # the second time it came from the cache


def test_length_need_not_be_stated(server: Server, tmp_path: Path) -> None:
    assert download(f"{server.url}/unstated.pth", PREFIX, tmp_path).read_bytes() == CONTENT


def test_damaged_cache_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_bytes(CONTENT[:100])
    assert download(f"{server.url}/a.pth", PREFIX, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "prefix", "message"),
    [
        ("a.pth", "00000000", f"sha256 {SHA256[:16]}.* instead of 00000000"),
        ("cut.pth", PREFIX, r"cannot download .*1000 more expected"),
        ("missing.pth", PREFIX, "answered HTTP 404"),
    ],
)
def test_failures_leave_no_file(server: Server, tmp_path: Path, path: str, prefix: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        download(f"{server.url}/{path}", prefix, tmp_path)
    assert server.url in str(caught.value)
    assert "local file" in str(caught.value)
    assert files(tmp_path) == []


def test_failure_keeps_what_was_there(server: Server, tmp_path: Path) -> None:
    (tmp_path / "missing.pth").write_bytes(b"older")
    with pytest.raises(WeightsError, match="404"):
        download(f"{server.url}/missing.pth", PREFIX, tmp_path)
    assert (tmp_path / "missing.pth").read_bytes() == b"older"


def test_no_server(server: Server, tmp_path: Path) -> None:
    server.close()
    with pytest.raises(WeightsError, match="check the network"):
        download(f"{server.url}/a.pth", PREFIX, tmp_path, timeout_s=5)
    assert files(tmp_path) == []


def test_interruption_leaves_no_file(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download(f"{server.url}/a.pth", PREFIX, tmp_path)
    assert files(tmp_path) == []


def test_cache_that_is_a_file(server: Server, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(WeightsError, match="PLURALIS_CACHE"):
        download(f"{server.url}/a.pth", PREFIX, blocked / "cache")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PLURALIS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "pluralis" / "weights"
