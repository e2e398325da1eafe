"""A chat model that gives the replies a test taught it, over a real engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.model.chat_template import ChatTemplate, Message
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.byte_vocabulary import EOS
from tenure.testing.chat_templates import HERMES
from tenure.testing.harness import FakeSetup
from tenure.testing.scripted_model import ScriptedModel


class ScriptedChat:
    """Start an engine with `setup`, and teach it conversations at any time.

    A reply comes out as taught only where the whole context has exactly the tokens that the
    template makes of the conversation; otherwise the model babbles.
    """

    def __init__(self, template: str = HERMES, page_size: int = 1) -> None:
        self.model = ScriptedModel()
        self.setup = FakeSetup(
            n_pages=16_384,
            page_size=page_size,
            step_tokens=4096,
            mixed_tokens=1024,
            model=self.model,
            template=template,
        )
        self._tokenizer = ByteTokenizer()

    @property
    def chat(self) -> ChatTemplate:
        found = self.setup.text().chat
        assert found is not None
        return found

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] | None = None,
        **extra: object,
    ) -> list[int]:
        """The tokens of a conversation that awaits a reply."""
        return self.encode(self.chat.render(messages, True, tools, **extra))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)

    def teach(
        self,
        messages: Sequence[Message],
        reply: str,
        tools: Sequence[Mapping[str, object]] | None = None,
        *,
        ended: bool = True,
        **extra: object,
    ) -> None:
        """After `messages` the model says `reply`, and then EOS if `ended`."""
        self.teach_text(self.chat.render(messages, True, tools, **extra), reply, ended=ended)

    def teach_text(self, context: str, reply: str, *, ended: bool = True) -> None:
        """After a context given as text the model says `reply`, and then EOS if `ended`."""
        said = self.encode(reply)
        self.model.teach(self.encode(context), [*said, EOS] if ended else said)
