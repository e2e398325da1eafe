"""Fetching from a hub: the real download code against a server on the loopback interface."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tenure.testing.tiny_models import write_tiny_model

REPO = "tests/tiny-llama"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import json, sys
from tenure.core.errors import ModelError
from tenure.model.load import load_checkpoint
seen = []
try:
    checkpoint = load_checkpoint(sys.argv[1], progress=lambda *report: seen.append(report))
    files = sorted(p.name for p in checkpoint.path.iterdir())
    result = {"fingerprint": checkpoint.weights.fingerprint, "files": files, "progress": seen}
except ModelError as error:
    result = {"error": error.message}
print(json.dumps(result))
"""


class Hub:
    """One repository: a folder's files, and the paths that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        path = path.split("?", maxsplit=1)[0]
        self.asked.append(path)
        api, resolve = f"/api/models/{REPO}", f"/{REPO}/resolve/{COMMIT}/"
        if path in (f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            return 200, {}, json.dumps(self._info()).encode()
        if path == f"{api}/tree/{COMMIT}":
            return 200, {}, json.dumps(self._tree()).encode()
        if path.startswith(resolve) and (self.folder / path.removeprefix(resolve)).is_file():
            body = (self.folder / path.removeprefix(resolve)).read_bytes()
            etag = hashlib.sha256(body).hexdigest()
            return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"

    def _info(self) -> dict[str, object]:
        files = [{"rfilename": path.name} for path in sorted(self.folder.iterdir())]
        return {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": files, "private": False}

    def _tree(self) -> list[dict[str, object]]:
        return [
            {
                "type": "file",
                "path": path.name,
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in sorted(self.folder.iterdir())
        ]


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def load_in_process(repo: str, endpoint: str, home: Path) -> dict[str, object]:
    """What a fresh process finds: the hub's client reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, repo],
        env=kept | settings | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    folder = write_tiny_model(tmp_path / "repository", "llama")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04 a pickle")
    (folder / "modeling_custom.py").write_text("raise SystemExit('remote code ran')")
    (folder / "consolidated.safetensors").write_bytes(b"a second copy")
    return Hub(folder)


def test_a_hub_id_is_fetched_once_and_then_served_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(hub) as endpoint:
        first = load_in_process(REPO, endpoint, home)
    assert first["files"] == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert not [p for p in hub.asked if p.endswith((".bin", ".py", "consolidated.safetensors"))]
    what, done, total = first["progress"][-1]
    n_bytes = sum((hub.folder / name).stat().st_size for name in first["files"])
    assert (what, done, total) == (f"fetching {REPO}", n_bytes, n_bytes)

    offline = load_in_process(REPO, endpoint, home)
    assert offline["fingerprint"] == first["fingerprint"]


def test_a_repository_that_does_not_exist_is_named(hub: Hub, tmp_path: Path) -> None:
    with serving(hub) as endpoint:
        result = load_in_process("tests/absent", endpoint, tmp_path / "home")
    assert "tests/absent: neither a local path nor a repository" in result["error"]


def test_offline_without_a_cache_says_what_to_do(tmp_path: Path) -> None:
    result = load_in_process(REPO, "http://127.0.0.1:9", tmp_path / "home")
    assert "is not in the local cache and the hub cannot be reached" in result["error"]
    assert "HF_ENDPOINT" in result["error"]
