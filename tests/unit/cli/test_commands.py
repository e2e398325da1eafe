"""Flags, errors and the small commands."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.cli import serve as serve_module
from tenure.cli.doctor import examine
from tenure.cli.flags import EngineFlags, ServerFlags
from tenure.cli.load import percentile
from tenure.cli.machine import Machine, look
from tenure.cli.serve import bind, is_loopback, settings
from tenure.core.clock import ManualClock
from tenure.core.config import (
    AdapterPath,
    EngineSettings,
    JournalSettings,
    JournalSync,
    QueueOrder,
)
from tenure.core.errors import ConfigError
from tenure.store.journal import open_journal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup

VERBS = (
    *("list", "show", "tree", "fork", "rewind", "compact", "touch", "evict", "close", "events"),
)
COMMANDS = (
    (),
    ("serve",),
    ("chat",),
    ("generate",),
    ("doctor",),
    ("sessions",),
    ("sessions", "vacuum"),
    ("bench",),
    ("bench", "serve"),
    ("bench", "bookkeeping"),
    ("sessions",),
    *(("sessions", verb) for verb in VERBS),
)


@pytest.fixture
def asked(monkeypatch):
    """What `tenure serve` was asked for; nothing is served."""
    seen = []

    def stop(settings, _report):
        seen.append(settings)
        raise ConfigError("far enough")

    monkeypatch.setattr(serve_module, "locate", stop)
    return seen


def free_port():
    with bind("127.0.0.1", 0) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(run, command):
    ran = run(*command, "--help")
    assert ran.status == 0
    assert "Example: tenure" in ran.out


def test_the_version_is_printed(run):
    assert run("--version").out.strip() == "0.1.0"


def test_serve_flags_have_the_engines_defaults():
    assert EngineFlags().settings() == EngineSettings()
    assert (ServerFlags().host, ServerFlags().port) == ("127.0.0.1", 30000)


def test_flags_reach_the_engine(run, asked):
    ran = run(
        *("serve", "--port", free_port(), "--model", "m.gguf", "--page-size", "8"),
        *("--max-kv-tokens", "4096", "--order", "priority", "--seed", "3"),
    )
    assert (ran.status, ran.err.strip()) == (2, "error: far enough")
    wanted = EngineSettings(
        model="m.gguf",
        page_size=8,
        max_kv_tokens=4096,
        order=QueueOrder.PRIORITY,
        seed=3,
        journal=JournalSettings(kv_disk_bytes=4 * 10**9),
    )
    assert asked == [wanted]


def test_adapters_are_named_one_after_the_other(run, asked):
    port = ("--port", free_port())
    run("serve", "--lora-paths", "a=/one", "b=owner/two", "./three", *port)
    run("serve", *port, "--lora-paths", "a=/one", "--lora-paths", "b=owner/two")
    named = (AdapterPath("a", "/one"), AdapterPath("b", "owner/two"))
    assert [settings.adapters for settings in asked] == [
        (*named, AdapterPath("./three", "./three")),
        named,
    ]
    for wrong in ("=path", "name="):
        refused = run("serve", *port, "--lora-paths", wrong)
        assert f"lora_paths must be name=path, got {wrong!r}" in refused.err


def test_serve_keeps_sessions_unless_told_not_to(run, asked, tmp_path):
    port = ("--port", free_port())
    where = ("--state-dir", str(tmp_path), "--journal-sync", "full", "--journal-optional")
    for flags in ((), ("--no-journal",), where):
        run("serve", *port, *flags)
    assert [settings.journal for settings in asked] == [
        JournalSettings(kv_disk_bytes=4 * 10**9),
        None,
        JournalSettings(tmp_path, JournalSync.FULL, required=False, kv_disk_bytes=4 * 10**9),
    ]


def test_serve_keeps_as_much_kv_on_disk_as_it_is_told(run, asked):
    port = ("--port", free_port())
    for flags in (("0",), ("0.5",), ("0", "--no-journal")):
        run("serve", *port, "--kv-disk-gb", *flags)
    assert [settings.journal for settings in asked] == [
        JournalSettings(),
        JournalSettings(kv_disk_bytes=5 * 10**8),
        None,
    ]
    for flags, said in (
        (("-1",), "--kv-disk-gb must be in [0, 1000000], got -1"),
        (("nan",), "--kv-disk-gb must be in [0, 1000000], got nan"),
        (("1", "--no-journal"), "leave out --no-journal"),
    ):
        ran = run("serve", *port, "--kv-disk-gb", *flags)
        assert (ran.status, said in ran.err) == (2, True)


def test_flags_win_over_variables_and_variables_over_the_file(run, asked, tmp_path, monkeypatch):
    file = tmp_path / "tenure.toml"
    file.write_text("page-size = 1\nmax-queue = 1\nmax_running = 1\n")
    monkeypatch.setenv("TENURE_MAX_QUEUE", "2")
    monkeypatch.setenv("TENURE_PAGE_SIZE", "2")
    run("serve", "--port", free_port(), "--config", str(file), "--page-size", "4")
    (got,) = asked
    assert (got.page_size, got.max_queue, got.max_running) == (4, 2, 1)


def test_a_config_file_must_exist_and_hold_known_keys(run, asked, tmp_path):
    missing = run("serve", "--config", str(tmp_path / "none.toml"))
    assert missing.status == 2
    assert "no such file" in missing.err
    file = tmp_path / "tenure.toml"
    file.write_text("pagesize = 1\n")
    unknown = run("serve", "--config", str(file))
    assert unknown.status != 0
    assert "pagesize" in unknown.out + unknown.err
    assert asked == []


def test_a_config_file_may_have_the_commands_table_and_no_other(run, asked, tmp_path):
    file = tmp_path / "tenure.toml"
    file.write_text("max-running = 3\n[serve]\npage-size = 8\n")
    run("serve", "--port", free_port(), "--config", str(file))
    (got,) = asked
    assert (got.page_size, got.max_running) == (8, 3)
    for text, said in (
        ("[chat]\npage-size = 8\n", "[chat] is not read; use [serve] or no table"),
        ("serve = 1\n", "serve must be a table, [serve]"),
        ("[serve]\npagesize = 8\n", "pagesize"),
        ("[serve\n", "tenure.toml: "),
    ):
        file.write_text(text)
        refused = run("serve", "--config", str(file))
        assert refused.status != 0
        assert said in refused.out + refused.err
    assert len(asked) == 1


def test_a_port_that_kubernetes_set_is_explained(run, asked, monkeypatch):
    monkeypatch.setenv("TENURE_PORT", "tcp://10.0.0.1:30000")
    refused = run("serve")
    assert refused.status == 2
    assert "enableServiceLinks" in refused.err
    run("serve", "--port", "0")
    assert len(asked) == 1


@pytest.mark.parametrize("flag", ["--model", "--max-kv-tokens", "--page-size", "--threads"])
def test_a_flag_of_the_engine_does_not_go_with_a_url(run, flag):
    refused = run("generate", "x", "--url", "http://127.0.0.1:9", flag, "1")
    assert refused.status == 2
    assert f"{flag} is for a model that is loaded here" in refused.err


def test_a_variable_for_a_model_does_not_stand_in_the_way_of_a_url(run, monkeypatch):
    monkeypatch.setenv("TENURE_MODEL", "m")
    assert "no answer from" in run("generate", "x", "--url", "http://127.0.0.1:9").err


def test_a_port_in_use_is_told_before_a_model_is_loaded(run, asked):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ran = run("serve", "--port", str(other.getsockname()[1]))
    assert ran.status == 2
    assert "choose another with --port" in ran.err
    assert asked == []


def test_an_open_host_without_a_key_is_warned_about(run, asked):
    warned = run("serve", "--host", "0.0.0.0", "--port", "0")
    assert "warning: 0.0.0.0 is open to other machines" in warned.err
    for safe in (("--host", "0.0.0.0", "--api-key", "k"), ("--host", "127.0.0.1")):
        assert "warning" not in run("serve", "--port", "0", *safe).err


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_loopback_hosts(host, loopback):
    assert is_loopback(host) is loopback


def test_what_server_info_shows_has_no_key():
    shown = settings(EngineFlags(page_size=8), ServerFlags(api_key="sesame", port=1)).shown
    assert (shown["page_size"], shown["port"], shown["order"]) == (8, 1, "fcfs")
    assert "sesame" not in str(dict(shown))
    assert (shown["journal"], shown["journal_sync"], shown["state_dir"]) == (True, "normal", None)
    assert "sesame" not in repr(settings(EngineFlags(), ServerFlags(api_key="sesame")))


def test_generate_prints_the_text(run, fake_model):
    ran = run("generate", "abc", "--temperature", "0", "--max-new-tokens", "4", "--json")
    answer = json.loads(ran.out)
    assert answer["output_ids"] == fake_model.greedy(b"abc", 4)
    plain = run("generate", "abc", "--temperature", "0", "--max-new-tokens", "4")
    assert plain.status == 0
    assert plain.out.endswith("\n")


def test_generate_can_chat(run, fake_model):
    ran = run("generate", "hi", "--chat", "--json", "--temperature", "0", "--max-new-tokens", "1")
    assert json.loads(ran.out)["meta_info"]["prompt_tokens"] > len("hi")


def test_a_server_that_is_not_there_is_one_line(run):
    ran = run("generate", "hi", "--url", f"http://127.0.0.1:{free_port()}")
    assert ran.status == 2
    assert "is `tenure serve` running there?" in ran.err
    assert "Traceback" not in ran.err


def test_a_refused_value_is_one_line(run, fake_model):
    ran = run("generate", "hi", "--top-p", "7")
    assert (ran.status, ran.err.strip()) == (2, "error: top_p must be in (0, 1], got 7.0.")


def test_doctor_prints_json(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TENURE_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    findings = {f["about"]: f for f in json.loads(run("doctor", "--json").out)}
    state = str(tmp_path / "tenure")
    assert findings["state folder"]["found"].startswith(f"{state}, ")
    assert "up to 4 GB of KV a model in */pages, 0.0 GB now" in findings["state folder"]["found"]
    assert findings["tenure"]["found"] == "0.1.0"
    assert findings["cache folder"]["found"] == str(tmp_path)
    assert "first start fetches" in findings["model"]["found"]
    assert run("doctor").status == 0


def test_doctor_says_what_to_change(tmp_path):
    small = Machine("a cpu", (), 1, 2**30)
    advice = {f.about: f.advice for f in examine(str(tmp_path / "no.gguf"), small, 2**20)}
    assert "two cores" in advice["cpu"]
    assert "free memory" in advice["memory"]
    assert "no such file" in advice["model"]


def test_the_machine_is_read_from_the_kernel(tmp_path):
    (tmp_path / "cpuinfo").write_text(
        "processor : 0\nmodel name : Fast CPU\nflags : fpu avx2 avx512f\n\nprocessor : 1\n"
    )
    machine = look(tmp_path)
    assert (machine.cpu, machine.isa) == ("Fast CPU", ("avx2", "avx512f"))
    assert look(tmp_path / "nothing").isa == ()


@pytest.mark.parametrize(
    ("samples", "percent", "value"),
    [([3, 1, 2], 50, 2), ([3, 1, 2], 99, 3), ([1, 2, 3, 4], 50, 2), ([5], 1, 5), ([], 50, 0)],
)
def test_percentile_is_the_nearest_rank(samples, percent, value):
    assert percentile(samples, percent) == value


def test_vacuum_writes_every_journal_anew_and_names_who_holds_one(run, tmp_path):
    nothing = run("sessions", "vacuum", "--state-dir", str(tmp_path))
    assert nothing.status == 2
    assert "there is no journal below" in nothing.err
    setup = FakeSetup()
    model = setup.wiring(FakeRunner(setup.kv_spec(), setup.model), ManualClock()).model
    settings = JournalSettings(tmp_path)
    for fingerprint in ("a" * 16, "b" * 16):
        open_journal(settings, replace(model, fingerprint=fingerprint)).close()
    done = run("sessions", "vacuum", "--state-dir", str(tmp_path), "--json")
    assert [Path(one["folder"]).name for one in json.loads(done.out)] == ["a" * 16, "b" * 16]
    held = open_journal(settings, replace(model, fingerprint="b" * 16))
    refused = run("sessions", "vacuum", "--state-dir", str(tmp_path))
    held.close()
    assert refused.status == 2
    assert f"is in use by process {os.getpid()}; stop that one" in refused.err.replace("\n", " ")
