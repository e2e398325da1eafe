"""What is kept of conversations is bounded, and sessions are let go with the last of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tenure.server.chat.ask import Talk
from tenure.server.chat.transcript import Exchange, Transcript
from tenure.server.openai.responses.store import (
    MemoryStore,
    StoredConversation,
    StoredResponse,
)

ITEM = {"type": "message", "id": "m", "content": "x" * 100}


def response(name, session=None, size=100):
    return StoredResponse(name, {"id": name, "pad": "x" * size}, (), (), session=session)


def exchange(text, parent=None):
    talk = Talk(({"role": "user", "content": text},))
    return Exchange(parent, talk, {"role": "assistant", "content": text.upper()})


class TestStore:
    def test_what_was_used_least_recently_goes_first(self):
        store = MemoryStore(max_bytes=400)
        for name in "abc":
            assert store.put_response(response(name)) == []
        assert store.response("a") is not None
        store.put_response(response("d"))
        kept = [name for name in "abcd" if store.response(name) is not None]
        assert kept == ["a", "c", "d"]

    def test_one_that_is_too_large_is_kept_alone(self):
        store = MemoryStore(max_bytes=50)
        store.put_response(response("a"))
        store.put_response(response("b"))
        assert store.response("a") is None
        assert store.response("b") is not None

    def test_a_session_goes_with_the_last_that_refers_to_it(self):
        store = MemoryStore()
        conversation = StoredConversation("s", 0, {})
        store.put_conversation(conversation)
        store.put_response(response("a", "s"))
        assert store.put_conversation(conversation.extended([ITEM])) == []
        assert store.put_response(response("a", "s")) == []
        assert store.remove_conversation("s") == []
        assert store.remove_response("a") == ["s"]
        assert store.remove_response("a") == []

    def test_a_response_is_no_conversation(self):
        store = MemoryStore()
        store.put_response(response("a"))
        assert store.conversation("a") is None
        assert store.remove_conversation("a") == []
        assert store.response("a") is not None

    @given(
        st.lists(
            st.tuples(
                st.sampled_from("pr"),
                st.sampled_from("abcdef"),
                st.sampled_from(["s", "t", None]),
                st.integers(0, 300),
            )
        )
    )
    def test_sessions_are_let_go_exactly_when_nothing_refers_to_them(self, verbs):
        store = MemoryStore(max_bytes=600)
        open_sessions = set()
        for verb, name, session, size in verbs:
            if verb == "p":
                freed = store.put_response(response(name, session, size))
                open_sessions |= {session} - {None}
            else:
                freed = store.remove_response(name)
            open_sessions -= set(freed)
            found = [store.response(n) for n in "abcdef"]
            assert open_sessions == {r.session for r in found if r is not None} - {None}

    def test_taking_out_an_item_that_a_turn_holds_forgets_the_turn(self):
        items = [{**ITEM, "id": name} for name in "abc"]
        whole = StoredConversation("s", 0, {}).extended(items)
        held = replace(whole, tip="t", n_held=2)
        assert (held.without("c").tip, held.without("c").n_held) == ("t", 2)
        assert (held.without("a").tip, held.without("a").n_held) == (None, 0)
        assert [item["id"] for item in held.without("b").items] == ["a", "c"]


class TestTranscript:
    def test_a_conversation_is_the_chain_of_its_exchanges(self):
        transcript = Transcript()
        transcript.add(("s", 0, "a"), exchange("a"))
        transcript.add(("s", 0, "b"), exchange("b", ("s", 0, "a")))
        said = [message["content"] for message in transcript.messages(("s", 0, "b"))]
        assert said == ["a", "A", "b", "B"]

    def test_another_session_of_the_same_name_is_another(self):
        transcript = Transcript()
        transcript.add(("s", 0, "a"), exchange("a"))
        assert transcript.messages(("s", 1, "a")) is None

    def test_the_oldest_is_forgotten_first_and_breaks_its_chain(self):
        transcript = Transcript(max_bytes=400)
        parent = None
        for name in "abcdefgh":
            transcript.add(("s", 0, name), exchange(name * 20, parent))
            parent = ("s", 0, name)
        assert transcript.find(("s", 0, "a")) is None
        assert transcript.find(("s", 0, "h")) is not None
        assert transcript.messages(("s", 0, "h")) is None
