"""`rnn-engine chat`: a conversation on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.cli.options import (
    chat_template_option,
    device_memory_option,
    device_option,
    lora_option,
    model_argument,
    tokenizer_option,
    v5_epsilon_option,
    weights_option,
)
from rnn_engine.cli.sampling_options import sampling_options
from rnn_engine.cli.session import EngineChoice, Session, engine_session
from rnn_engine.cli.state_options import only_state, state_option
from rnn_engine.model import LoraChoice
from rnn_engine.operations.chat_prompt import make_chat_prompt
from rnn_engine.operations.naming import text_before_chat
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from states.cache.config import CacheConfig

MAX_CHARACTERS = 2**24
_HINT = "Ctrl-C ends an answer. /new starts over, /exit or Ctrl-D leaves."


@click.command()
@model_argument
@click.option("--system", help="What the model is told before the conversation.")
@sampling_options
@tokenizer_option
@chat_template_option
@device_option
@weights_option
@device_memory_option
@v5_epsilon_option
@lora_option
@state_option
def command(
    model: Path,
    system: str | None,
    max_tokens: int,
    tokenizer: str,
    chat_template: str,
    device: str,
    weights: str | None,
    device_memory: int | None,
    v5_group_norm_epsilon: float | None,
    loras: tuple[LoraChoice, ...],
    state: Path | None,
    sampling: SamplingParams,
) -> None:
    """Talk with a model.

    Ctrl-C ends an answer. /new starts a new conversation; /exit or Ctrl-D leaves.
    """
    beginning = [] if system is None else [ChatMessage(Role.SYSTEM, system)]
    choice = EngineChoice(
        model,
        tokenizer,
        device,
        slots=1,
        cache=CacheConfig(),
        states=only_state(state),
        v5_group_norm_epsilon=v5_group_norm_epsilon,
        weights=weights,
        device_memory=device_memory,
        loras=loras,
        chat_template=chat_template,
    )
    with engine_session(choice) as session:
        click.secho(f"{session.engine.info.model} on {session.engine.info.device}. {_HINT}", dim=True)
        talk = Talk(session, sampling.resolved(session.engine.tokenize), max_tokens, list(beginning))
        while (said := _read_line()) not in (None, "/exit"):
            if said == "/new":
                talk.messages = list(beginning)
            elif said:
                talk.say(said)


def _read_line() -> str | None:
    """Return what the user types; None at the end of the input or on Ctrl-C."""
    try:
        return input("User: ").strip()
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None


@dataclass
class Talk:
    """The messages so far, and the settings of the next answer."""

    session: Session
    sampling: SamplingParams
    max_tokens: int
    messages: list[ChatMessage] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print the answer to `text` as it comes. The conversation keeps what was printed before a Ctrl-C."""
        self.messages.append(ChatMessage(Role.USER, text))
        reply = _Reply()
        click.echo("Assistant:", nl=False)
        try:
            self.session.generate(self._request(), reply.add)
        except KeyboardInterrupt:
            click.echo(" …", nl=False)
        click.echo()
        if reply.text:
            self.messages.append(ChatMessage(Role.ASSISTANT, reply.text))

    def _request(self) -> GenerateRequest:
        engine, initial = self.session.engine, self.session.initial
        template = engine.info.chat_template
        before = text_before_chat(engine, initial, template)
        prompt = make_chat_prompt(engine, template, Conversation(self.messages), MAX_CHARACTERS, before=before)
        return GenerateRequest(
            prompt=prompt.tokens,
            initial_state=None if initial is None else initial.for_request,
            max_tokens=self.max_tokens,
            stop=tuple(text.encode() for text in prompt.stop),
            stop_tokens=(0, *prompt.stop_tokens),
            sampling=self.sampling,
            penalised_prompt=self._earlier_replies(self.messages),
        )

    def _earlier_replies(self, messages: Sequence[ChatMessage]) -> list[int]:
        replies = [message.content for message in messages if message.role is Role.ASSISTANT]
        return [token for reply in replies for token in self.session.engine.tokenize(reply)]


@dataclass
class _Reply:
    text: str = ""

    def add(self, delta: TextDelta) -> None:
        self.text += delta.text
        click.echo(delta.text, nl=False)
        sys.stdout.flush()
