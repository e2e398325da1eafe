"""Sessions as files, over HTTP and from a shell."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import pytest

from tenure.cli.main import main
from tenure.core.errors import ConfigError
from tenure.core.turns import OpenSession
from tenure.server.limits import Limits

EXPORT = "/v1/sessions/s/export"
IMPORT = "/v1/sessions/import"


async def talked(served):
    """A session of two turns; the whole of its history."""
    await served.post("/open_session", {"session_id": "s", "capacity_of_str_len": 0})
    ids = list(range(40))
    for turn, parent, new in (("a", None, ids), ("b", "a", [7, 8])):
        place = {"id": "s"} | ({} if parent is None else {"rid": parent})
        answer = await served.generate(input_ids=new, rid=turn, session_params=place)
        assert answer.status_code == 200, answer.text


async def go_on(served, session: str):
    answer = await served.generate(input_ids=[9], session_params={"id": session, "rid": "b"})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("kv", ["true", "false"])
async def test_a_session_goes_on_elsewhere(serve, spool: Path, kv: str):
    one, two = serve(), serve()
    await talked(one)
    file = await one.http.post(f"{EXPORT}?kv={kv}")
    assert file.status_code == 200
    assert file.headers["content-type"] == "application/octet-stream"
    assert int(file.headers["content-length"]) == len(file.content)
    got = await two.http.post(f"{IMPORT}?id=renamed", content=file.content)
    assert got.status_code == 200, got.text
    body = got.json()
    assert body["n_kv_tokens"] == (48 if kv == "true" else 0)
    assert (body["kv"] is None) is (kv == "true")
    assert {name: body[name] for name in ("session", "tip", "n_turns", "n_tokens")} == {
        "session": "renamed",
        "tip": "b",
        "n_turns": 2,
        "n_tokens": 50,
    }
    want, answer = await go_on(one, "s"), await go_on(two, "renamed")
    assert answer["output_ids"] == want["output_ids"]
    assert answer["meta_info"]["cached_tokens"] == body["n_kv_tokens"]
    assert not list(spool.iterdir())


async def test_what_cannot_be_taken_in_is_refused(serve, spool: Path):
    one = serve()
    await talked(one)
    data = (await one.http.post(EXPORT)).content
    for body, status, code in (
        (b"", 400, "bad_archive"),
        (b"nonsense", 400, "bad_archive"),
        (data[:-1], 400, "bad_archive"),
        (data[:-1] + bytes([data[-1] ^ 1]), 400, "bad_archive"),
        (data, 409, "session_exists"),
    ):
        answer = await one.http.post(IMPORT, content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    answer = await one.http.post(f"{IMPORT}?id=%01", content=data)
    assert answer.json()["error"]["code"] == "invalid_field"
    answer = await one.http.post("/v1/sessions/other/export")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
    assert (await one.engine.sessions()) == ["s"]
    assert not list(spool.iterdir())


async def test_a_namespace_that_no_request_made_is_shown_as_it_is(served):
    await served.engine.open_session(OpenSession("s", namespace="of my own"))
    found = await served.http.get("/v1/sessions/s")
    assert (found.status_code, found.json()["namespace"]) == (200, "of my own")


async def test_files_have_a_bound_of_their_own(serve):
    served = serve(limits=Limits(max_body_bytes=100, max_import_bytes=1000))
    assert (await served.http.post(IMPORT, content=bytes(1001))).status_code == 413
    assert (await served.http.post(IMPORT, content=bytes(1000))).status_code == 400
    assert (await served.http.post("/generate", content=bytes(101))).status_code == 413


async def test_from_a_shell(serve, listen, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one, two = serve(), serve()
    urls = ["http://{}:{}".format(*await listen(served.app)) for served in (one, two)]
    await talked(one)
    capsys.readouterr()  # the log of its turn
    file = tmp_path / "s.safetensors"

    async def tenure(*argv: str) -> dict:
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(main, ["sessions", *argv, "--json"])
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        return json.loads(said.out.splitlines()[-1])  # the servers' logs come before it

    wrote = await tenure("export", "s", str(file), "--url", urls[0])
    assert wrote["n_bytes"] == file.stat().st_size
    read = await tenure("import", str(file), "--url", urls[1])
    assert (read["session"], read["n_kv_tokens"]) == ("s", 48)
    assert (await go_on(two, "s"))["output_ids"] == (await go_on(one, "s"))["output_ids"]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [file.name]


async def test_a_shell_is_told_what_is_wrong(serve, listen, tmp_path: Path):
    from tenure.cli.transfer import export, import_

    url = "http://{}:{}".format(*await listen(serve().app))
    there = tmp_path / "there"
    there.write_bytes(b"x")
    with pytest.raises(ConfigError, match="is there already"):
        export("s", there, url=url)
    with pytest.raises(ConfigError, match="is no file"):
        import_(tmp_path / "missing", url=url)
    with pytest.raises(Exception, match="does not exist"):
        await asyncio.to_thread(export, "s", tmp_path / "new", url=url)
    with pytest.raises(Exception, match="cannot be imported"):
        await asyncio.to_thread(import_, there, url=url)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["there"]
