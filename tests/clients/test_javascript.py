"""JavaScript clients against a served engine: the `openai` package and the Vercel AI SDK."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).with_name("js")
PACKAGES = ("package.json", "package-lock.json")
INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
ADD = {
    "name": "add",
    "description": "Add.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": ADD}]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="session")
def installed() -> Path:
    """A folder with the packages of the lock file, outside of the repository."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    lock = b"".join((HERE / name).read_bytes() for name in PACKAGES)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "tenure" / "javascript" / hashlib.sha256(lock).hexdigest()[:16]
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in PACKAGES:
            shutil.copy(HERE / name, folder)
        done = subprocess.run(INSTALL, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"npm cannot install the clients: {done.stderr.strip()[-300:]}")
        (folder / "done").touch()
    return folder


def taught(script):
    script.teach([user("Hi")], "Hello!")
    script.teach([user("a")], "A")
    for letter in "bc":
        script.teach([user("a"), assistant("A"), user(letter)], letter.upper())
    messages = [{"role": "system", "content": "Count."}, user("Go.")]
    for n in range(5):
        call = f'{{"name": "add", "arguments": {{"a": {n}, "b": 1}}}}'
        script.teach(messages, f"<tool_call>\n{call}\n</tool_call>", TOOLS)
        function = {"name": "add", "arguments": {"a": n, "b": 1}}
        messages.append({**assistant(""), "tool_calls": [{"function": function}]})
        messages.append({"role": "tool", "content": str(n + 1)})
    script.teach(messages, "5 it is.", TOOLS)


@pytest.mark.parametrize("name", ["openai.mjs", "ai-sdk.mjs", "ai-sdk-responses.mjs"])
async def test_a_client(site, installed, tmp_path, name):
    taught(site.script)
    # Node looks for packages beside the script.
    (tmp_path / "node_modules").symlink_to(installed / "node_modules")
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, tmp_path)
    ran = await asyncio.create_subprocess_exec(
        "node",
        str(tmp_path / name),
        env={**os.environ, "TENURE_URL": site.url, "TENURE_KEY": site.key},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await ran.communicate()
    assert ran.returncode == 0, out.decode()
