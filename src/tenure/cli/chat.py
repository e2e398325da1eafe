"""`tenure chat`: a conversation in a session, in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated
from uuid import uuid4

from rich.console import Console
from rich.text import Text

from tenure.cli.backends import Backend, Chat, open_backend
from tenure.cli.console import report_error
from tenure.cli.conversation import Conversation, Exchange
from tenure.cli.flags import DecodingFlags, EngineFlags, Where, flag
from tenure.cli.printing import show, status_line
from tenure.core.errors import TenureError, UnsupportedField, UserError

ENGINE_DEFAULTS = EngineFlags()
DECODING_DEFAULTS = DecodingFlags()
WHERE_DEFAULTS = Where()

HELP = """\
/fork [name]   start another branch here
/rewind [n]    go back n turns (1 if absent)
/turns         show the tree of turns
/goto WHERE    go on with a branch (its name) or from a turn (its number)
/new           start over in a new session
/quit          leave
Ctrl-C stops an answer; a stopped answer is not kept."""


def chat(
    *,
    system: Annotated[str | None, flag("What the model is told first.")] = None,
    decoding: DecodingFlags = DECODING_DEFAULTS,
    where: Where = WHERE_DEFAULTS,
    engine: EngineFlags = ENGINE_DEFAULTS,
) -> None:
    """Talk to a model; forks and rewinds are cheap, as the history stays in a session.

    Example: tenure chat --system "Answer in one sentence."
    """
    out, notes = Console(), Console(stderr=True)
    with asyncio.Runner() as runner:
        backend = runner.run(open_backend(where, engine, notes))
        try:
            talk = Talk(backend, decoding.sampling_params(), out, notes)
            Repl(runner, talk, system, out, notes).run()
        finally:
            runner.run(backend.close())


class Talk:
    """Turns of one session at a time: each sends what is new, and prints the reply as it comes."""

    def __init__(
        self, backend: Backend, sampling: Mapping[str, object], out: Console, notes: Console
    ) -> None:
        self._backend = backend
        self._sampling = sampling
        self._out = out
        self._notes = notes
        self._session: str | None = None

    async def model_name(self) -> str:
        return await self._backend.model_name()

    async def ask(self, conversation: Conversation, question: str) -> None:
        """Run a turn after the conversation's tip; only a turn that ended by itself is added."""
        if self._session is None:
            self._session = await self._backend.open_session()
        turn = uuid4().hex
        ids, parent = await self._prompt(conversation, question)
        fields = {
            "input_ids": ids,
            "rid": turn,
            "session_params": {"id": self._session, "rid": parent},
            "sampling_params": dict(self._sampling),
        }
        shown = await show(self._backend.stream(fields), self._out)
        self._notes.print(Text(status_line(shown), "dim"))
        match shown.answer["meta_info"]["finish_reason"]:
            case {"type": "stop", "matched": int(token)}:
                ended_with = await self._backend.token_text(token)
            case _:
                ended_with = ""
        conversation.add(turn, question, shown.answer["text"], ended_with)

    async def leave_session(self) -> None:
        """Close the session; the next turn opens another."""
        session, self._session = self._session, None
        if session is not None:
            await self._backend.close_session(session)

    async def _prompt(
        self, conversation: Conversation, question: str
    ) -> tuple[list[int], str | None]:
        """Ids to send, and the turn they continue (None: they start from nothing)."""
        tip = conversation.tip
        new = conversation.asking(question)
        if tip is None:
            return await self._backend.chat_ids(Chat(new)), None
        before = conversation.messages()
        try:
            return await self._backend.chat_ids(Chat(new, before, tip.ended_with)), tip.turn
        except UserError as error:
            if error.code != UnsupportedField.code:
                raise
            # The template rewrites what was said before, so all of it has to be sent again.
            return await self._backend.chat_ids(Chat([*before, *new])), None


class Repl:
    """Reads lines until the end of input or /quit, and runs each as a command or a question."""

    def __init__(
        self,
        runner: asyncio.Runner,
        talk: Talk,
        system: str | None,
        out: Console,
        notes: Console,
    ) -> None:
        self._runner = runner
        self._talk = talk
        self._system = system
        self._out = out
        self._notes = notes
        self._conversation = Conversation(system)
        self._commands: dict[str, Callable[[str], None]] = {
            "/fork": self._fork,
            "/rewind": self._rewind,
            "/turns": lambda _: self._out.print(self._conversation.tree()),
            "/goto": self._goto,
            "/new": self._new,
            "/help": lambda _: self._out.print(HELP, markup=False, highlight=False),
        }

    def run(self) -> None:
        """Raises TenureError only for what happens before the first line."""
        name = self._runner.run(self._talk.model_name())
        self._notes.print(Text(f"{name}; /help shows the commands.", "dim"))
        while (line := self._read()) is not None and line != "/quit":
            try:
                self._do(line)
            except TenureError as error:
                report_error(self._notes, error)
            except KeyboardInterrupt:
                self._notes.print(Text("\nstopped; this answer is not kept", "dim"))
        with suppress(TenureError):
            self._runner.run(self._talk.leave_session())

    def _read(self) -> str | None:
        """The next line, None at the end of input. A prompt is shown to people only."""
        prompt = f"{self._conversation.branch}> " if sys.stdin.isatty() else ""
        try:
            return input(prompt).strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            self._notes.print(Text("\n/quit or Ctrl-D leaves", "dim"))
            return ""

    def _do(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if not line.startswith("/"):
            if line:
                self._runner.run(self._talk.ask(self._conversation, line))
        elif name in self._commands:
            self._commands[name](rest.strip())
        else:
            raise UserError(f"unknown command {name}; /help shows them")

    def _fork(self, name: str) -> None:
        self._say(f"on branch {self._conversation.fork(name or None)}")

    def _rewind(self, n: str) -> None:
        if n and not n.isdecimal():
            raise UserError(f"/rewind takes a number of turns, got {n}")
        self._conversation.rewind(int(n or 1))
        self._say(_place(self._conversation.tip))

    def _goto(self, where: str) -> None:
        self._conversation.goto(where)
        self._say(f"on branch {self._conversation.branch}, {_place(self._conversation.tip)}")

    def _new(self, _: str) -> None:
        self._runner.run(self._talk.leave_session())
        self._conversation = Conversation(self._system)
        self._say("a new session")

    def _say(self, text: str) -> None:
        self._notes.print(Text(text, "dim"))


def _place(tip: Exchange | None) -> str:
    return "at the start" if tip is None else f"after turn {tip.number}: {tip.question}"
