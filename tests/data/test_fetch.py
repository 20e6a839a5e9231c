"""Downloads from a real server on this machine: whole, resumed, refused."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mlpot.cli import app
from mlpot.data import fetch as module
from mlpot.data.fetch import SETS, Published, Remote, fetch
from mlpot.errors import UserError

CONTENT = bytes(range(256)) * 12_000  # 3 MB


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; /ranges goes on where it is asked to, /whole does not, /breaks stops in the middle."""

    asked: list[str | None]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)  # type: ignore[attr-defined]
        if self.path not in ("/ranges", "/whole", "/breaks"):
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.path != "/whole" else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        end = len(CONTENT) // 2 if self.path == "/breaks" and not start else len(CONTENT)
        self.wfile.write(CONTENT[start:end])

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def sets(server: http.server.ThreadingHTTPServer, path: str, **changes: object) -> dict[str, Published]:
    url = f"http://127.0.0.1:{server.server_address[1]}/{path}"
    remote = Remote("set.bin", url, len(CONTENT), hashlib.md5(CONTENT).hexdigest())._replace(**changes)
    return {"a_set": Published((remote,), "", "")}


def nothing(name: str, there: int, whole: int) -> None:
    """No progress shown."""


def test_a_file_comes_whole_and_once(server: http.server.ThreadingHTTPServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    (path,) = fetch("a_set", tmp_path / "new", lambda *told: seen.append(told), sets(server, "ranges"))
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["set.bin"]
    assert seen[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert [there for _, there, _ in seen] == sorted(there for _, there, _ in seen)
    fetch("a_set", tmp_path / "new", nothing, sets(server, "ranges"))
    assert len(server.asked) == 1  # type: ignore[attr-defined]


def test_a_broken_download_goes_on_where_it_was(server: http.server.ThreadingHTTPServer, tmp_path: Path) -> None:
    known = sets(server, "breaks")
    half = len(CONTENT) // 2
    with pytest.raises(UserError, match=f"{half} of {len(CONTENT)} bytes are kept"):
        fetch("a_set", tmp_path, nothing, known)
    assert not (tmp_path / "set.bin").exists()
    (path,) = fetch("a_set", tmp_path, nothing, known)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={half}-"]  # type: ignore[attr-defined]


def test_a_server_that_does_not_resume_sends_all_again(server: http.server.ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / ".set.bin.part").write_bytes(CONTENT[:1000])
    (path,) = fetch("a_set", tmp_path, nothing, sets(server, "whole"))
    assert path.read_bytes() == CONTENT


def test_another_file_than_the_published_one_is_thrown_away(
    server: http.server.ThreadingHTTPServer, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="not the published file"):
        fetch("a_set", tmp_path, nothing, sets(server, "whole", md5="0" * 32))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "set.bin").write_bytes(b"something of the user's")
    with pytest.raises(UserError, match="Move it away"):
        fetch("a_set", tmp_path, nothing, sets(server, "whole"))
    assert (tmp_path / "set.bin").read_bytes() == b"something of the user's"


def test_without_a_network_it_says_what_to_put_where(
    server: http.server.ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"404|Not Found"):
        fetch("a_set", tmp_path, nothing, sets(server, "elsewhere"))
    closed = {"a_set": Published((Remote("set.bin", "http://127.0.0.1:9/set.bin", 10, "0" * 32),), "", "")}
    with pytest.raises(UserError, match=r"put it at .*set\.bin \(10 bytes, MD5 0000"):
        fetch("a_set", tmp_path, nothing, closed)
    with pytest.raises(UserError, match='Did you mean "a_set"'):
        fetch("aset", tmp_path, nothing, closed)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=5))
    with pytest.raises(UserError, match="are needed"):
        fetch("a_set", tmp_path, nothing, sets(server, "whole"))


def test_the_command(server: http.server.ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = CliRunner().invoke(app, ["data", "fetch"])
    assert all(name in listed.output for name in SETS)
    monkeypatch.setitem(SETS, "a_set", sets(server, "ranges")["a_set"])
    result = CliRunner().invoke(app, ["data", "fetch", "a_set", "-o", str(tmp_path), "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["files"] == [str(tmp_path / "set.bin")]
    assert (tmp_path / "set.bin").read_bytes() == CONTENT


def test_what_is_published_has_a_checksum() -> None:
    for published in SETS.values():
        for file in published.files:
            assert len(bytes.fromhex(file.md5)) == 16
            assert file.size > 0
            assert file.url.startswith("https://")
