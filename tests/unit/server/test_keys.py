"""The keys file: who holds which key, and what they may use."""

from __future__ import annotations

import hashlib
import json

import pytest

from tenure.core.errors import ConfigError
from tenure.core.tenant import Tenant, TenantLimits, owned, split_owned
from tenure.server.keys import ANYBODY, KeyRing

TOML = """
[tenant.acme]
keys = ["one", "two"]
sessions = 10
turns_at_once = 2
queue_share = 0.5
kv_tokens = 4096
max_tokens = 2048

[tenant.boss]
sha256 = ["{digest}"]
operator = true
"""


@pytest.fixture
def write(tmp_path):
    def put(text, name="keys.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return put


def test_a_key_leads_to_its_tenant_and_its_limits(write):
    path = write(TOML.format(digest=hashlib.sha256(b"three").hexdigest()))
    ring = KeyRing(None, path)
    limits = TenantLimits(10, 2, 0.5, 4096, 2048)
    for key in (b"one", b"two"):
        caller = ring.find(key)
        assert (caller.tenant, caller.operator) == (Tenant("acme", limits), False)
    boss = ring.find(b"three")
    assert (boss.tenant, boss.operator) == (Tenant("boss"), True)
    for wrong in (b"", b"four", b"on", b"one ", hashlib.sha256(b"three").hexdigest().encode()):
        assert ring.find(wrong) is None


def test_json_says_the_same(write):
    told = {"tenant": {"acme": {"keys": ["one"], "sessions": 1}}}
    ring = KeyRing(None, write(json.dumps(told), "keys.json"))
    assert ring.find(b"one").tenant.limits == TenantLimits(sessions=1)


def test_the_single_key_is_the_operators_beside_a_file(write):
    ring = KeyRing("own", write('[tenant.acme]\nkeys = ["one"]'))
    assert (ring.find(b"own").tenant.name, ring.find(b"own").operator) == ("", True)
    assert ring.find(b"one").operator is False


def test_without_any_key_everybody_comes_in():
    assert not KeyRing().required
    assert KeyRing().find(b"") is ANYBODY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenant.a]", "tenant 'a' has neither keys nor sha256"),
        (
            '[tenant.a]\nkeys = ["k"]\nsession = 1',
            "tenant 'a': Object contains unknown field `session`",
        ),
        ("[tenant]\na = 1", "tenant 'a': Expected `object`"),
        ('[tenant.a]\nkeys = ["k"]\nsessions = 0', "tenant 'a': sessions must be at least 1"),
        ('[tenant.a]\nkeys = ["k"]\nqueue_share = 1.5', "queue_share must be in"),
        ('[tenant.a]\nkeys = ["k", "k"]', "one of its keys is given twice"),
        ('[tenant.a]\nkeys = ["k"]\n[tenant.b]\nkeys = ["k"]', "'b': one of its keys is given"),
        ('[tenant.a]\nkeys = [""]', "keys must be printable ASCII"),
        ('[tenant.a]\nsha256 = ["abc"]', "64 hexadecimal digits"),
        ('[tenant.""]\nkeys = ["k"]', "a tenant needs a name"),
        ('[tenant."a\\u001fb"]\nkeys = ["k"]', "printable characters"),
        ("[tenant", "keys.toml: "),
        ("", "missing required field `tenant`"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(write, text, said):
    with pytest.raises(ConfigError) as refused:
        KeyRing(None, write(text))
    assert said in refused.value.message
    assert "keys.toml" in refused.value.message


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.toml: No such file"):
        KeyRing(None, tmp_path / "absent.toml")


def test_a_secret_of_a_wrong_file_is_not_shown(write):
    for text in ('[tenant.a]\nkeys = ["sesame "]', '[tenant.a]\nkeys = "sesame"'):
        with pytest.raises(ConfigError) as refused:
            KeyRing(None, write(text))
        assert "sesame" not in refused.value.message


def test_a_reload_takes_what_is_new_and_keeps_the_old_where_it_is_wrong(write):
    path = write('[tenant.a]\nkeys = ["k"]\nsessions = 1')
    ring = KeyRing(None, path)
    write('[tenant.a]\nkeys = ["k"]\nsessions = 2\n[tenant.b]\nkeys = ["l"]')
    assert ring.reload()
    assert ring.find(b"l").tenant.name == "b"
    assert ring.tenant("a").limits.sessions == 2
    write("nonsense")
    assert not ring.reload()
    assert ring.find(b"l").tenant.name == "b"
    write('[tenant.a]\nkeys = ["k"]')
    assert ring.reload()
    assert ring.find(b"l") is None
    assert ring.tenant("b") == Tenant("b")


def test_names_of_tenants_and_ids_never_run_together():
    names = ["", "a", "a\x1fb", "\x1f", "\x1fa", "b"]
    pairs = [(tenant, name) for tenant in ("", "a", "b") for name in names]
    keys = [owned(*pair) for pair in pairs]
    assert len(set(keys)) == len(pairs)
    assert [split_owned(key) for key in keys] == pairs
