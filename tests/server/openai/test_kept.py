"""What is kept of conversations is bounded, and sessions are let go with the last of it."""

from __future__ import annotations

from dataclasses import replace

from tenure.server.chat.ask import Talk
from tenure.server.chat.transcript import Exchange, Transcript
from tenure.server.openai.responses.store import (
    ResponseStore,
    StoredConversation,
    StoredResponse,
)

ITEM = {"type": "message", "id": "m", "content": "x" * 100}


def exchange(text, parent=None):
    talk = Talk(({"role": "user", "content": text},))
    return Exchange(parent, talk, {"role": "assistant", "content": text.upper()})


class TestStore:
    async def test_what_is_put_comes_back_as_it_was(self, served):
        store = ResponseStore(served.engine)
        whole = StoredConversation("s", 7, {"a": "b"}).extended([ITEM])
        await store.put_conversation(replace(whole, tip="t", n_held=1, instructions="Be brief."))
        found = await store.conversation("s")
        assert found == replace(whole, tip="t", n_held=1, instructions="Be brief.")
        one = StoredResponse("a", {"id": "a", "n": [1.5, None]}, (ITEM,), (ITEM, ITEM), "p", "s")
        await store.put_response(one)
        assert await store.response("a") == one

    async def test_a_response_is_no_conversation(self, served):
        store = ResponseStore(served.engine)
        await store.put_response(StoredResponse("a", {}, (), ()))
        assert await store.conversation("a") is None
        await store.remove_conversation("a")
        assert await store.response("a") is not None

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
