"""Text to ids and back, for clients that have no tokenizer of their own."""

from __future__ import annotations

from typing import cast

from tenure.core.errors import UnsupportedField, UserError
from tenure.engine.text import Text
from tenure.server.wire import IdLists, Ids, Texts, Wire, about, check_ids


class MessageBody(Wire):
    """One message of a conversation."""

    role: str
    content: str


class TokenizeBody(Wire):
    """`/tokenize`: plain text (`prompt`), or `messages` through the model's chat template.

    With `after`, the tokens are what has to be added to a session that holds those messages.
    """

    prompt: str | Texts | None = None
    messages: list[MessageBody] | None = about(None, "New messages, ready for a reply.")
    after: list[MessageBody] | None = about(None, "Messages that the session already holds.")
    ended_with: str = about("", "Text of the token that ended the last reply; empty if cut.")
    model: str | None = about(None, "Accepted; one model is served.")
    add_special_tokens: bool = True


class DetokenizeBody(Wire):
    """`/detokenize`."""

    tokens: Ids | IdLists
    model: str | None = about(None, "Accepted; one model is served.")
    skip_special_tokens: bool = True


def tokenized(body: TokenizeBody, text: Text, max_tokens: int) -> dict[str, object]:
    """`tokens` and their `count`, lists where `prompt` is a list. Raises UserError."""
    texts, special = _texts_of(body, text)
    for one in texts:
        text.check_length(one, max_tokens)
    lists = [text.tokenizer.encode(one, special) for one in texts]
    counts = [len(ids) for ids in lists]
    if isinstance(body.prompt, list):
        return {"tokens": lists, "count": counts}
    return {"tokens": lists[0], "count": counts[0]}


def detokenized(body: DetokenizeBody, text: Text, n_vocab: int) -> str | list[str]:
    """The text of each list of ids. Raises InvalidField for an id outside the vocabulary."""
    batched = bool(body.tokens) and isinstance(body.tokens[0], list)
    lists = cast("list[list[int]]", body.tokens if batched else [body.tokens])
    for ids in lists:
        check_ids("tokens", ids, n_vocab)
    texts = [text.tokenizer.decode(ids, body.skip_special_tokens) for ids in lists]
    return texts if batched else texts[0]


def _texts_of(body: TokenizeBody, text: Text) -> tuple[list[str], bool]:
    """What is to be tokenised, and whether special tokens are added to it."""
    match body.prompt, body.messages:
        case str() as prompt, None:
            return [prompt], body.add_special_tokens
        case list() as prompts, None:
            return prompts, body.add_special_tokens
        case None, list() as messages:
            return [_chat_text(body, messages, text)], False
        case _:
            raise UserError("Give either prompt or messages.")


def _chat_text(body: TokenizeBody, messages: list[MessageBody], text: Text) -> str:
    if text.chat is None:
        raise UnsupportedField("messages", "the model has no chat template; send prompt")
    before = [dict(message) for message in body.after or ()]
    added = text.chat.suffix(before, [dict(message) for message in messages], body.ended_with)
    if added is None:
        raise UnsupportedField(
            "after", "the chat template rewrites earlier messages; send all of them as messages"
        )
    return added
