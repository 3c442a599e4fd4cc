"""Continue a text for `rnn-engine generate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from rnn_engine.chat_template import ChatMessage, ChatTemplate, Conversation, Role, WorldTemplate
from rnn_engine.cli.generation_options import Task
from rnn_engine.cli.session import EngineChoice, Session, engine_session
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.operations.chat_prompt import prompt_after
from rnn_engine.requests import GenerateRequest, TextDelta
from rnn_engine.sampling.params import SamplingParams
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState

_BLANK_HINT = (
    "hint: the model wrote only white space. If it was trained to chat, add --chat, or "
    "write the prompt as a turn of its chats, such as 'User: ...', a blank line, and 'Assistant:'."
)
_TURNS_HINT = (
    "hint: this model expects a conversation, and the prompt has no turns; --chat sends it as a user's message."
)
_MAX_CHARACTERS = 2**16


def generate(
    model: Path,
    loading: LoadSettings,
    states: StateSettings,
    sampling: SamplingParams,
    grammar: Grammar | None,
    task: Task,
    max_tokens: int,
) -> None:
    """Load a model, continue the task's prompt, or else its tokens, and print what follows: a text, or else tokens."""
    prompt, tokens, stop = task.prompt, task.tokens, task.stop
    with engine_session(EngineChoice(model, loading, slots=1)) as session:
        initial = session.initial if task.state is None else _read_state(session, task.state, states)
        stop_tokens: Sequence[int] = ()
        if prompt is not None and task.chat:
            made = prompt_after(session.engine, initial, Conversation([ChatMessage(Role.USER, prompt)]))
            tokens, stop, stop_tokens = made.tokens, (*stop, *made.stop), made.stop_tokens
        elif prompt is not None:
            tokens = session.engine.tokenize(prompt) or (session.engine.info.end_of_text,)
        request = GenerateRequest(
            prompt=tokens or (),
            initial_state=None if initial is None else initial.for_request,
            max_tokens=max_tokens,
            stop=stop,
            stop_tokens=(0, *stop_tokens),
            sampling=sampling.resolved(session.engine.tokenize),
            grammar=grammar,
        )
        lacks_turns = bool(prompt) and not task.chat and _lacks_turns(session.engine.info.chat_template, prompt or "")
        if lacks_turns:
            click.echo(_TURNS_HINT, err=True)
        printer = _TextPrinter(strips=task.chat)
        session.generate(request, printer.print if prompt is not None else _print_ids)
        click.echo()
        if printer.only_blanks and prompt is not None and not lacks_turns:
            click.echo(_BLANK_HINT, err=True)


def _read_state(session: Session, path: Path, states: StateSettings) -> FrozenState | None:
    """Return the state in a file; None, which is a state of fill values, for the path `none`."""
    if str(path) == NO_INITIAL_STATE:
        return None
    files = session.engine.state_files
    return files.freeze(files.read(path, any_model=states.any_model), str(path))


def _lacks_turns(template: ChatTemplate, prompt: str) -> bool:
    """Return True if `prompt` probably lacks the markers of a chat: the model's own template has them, `prompt` not."""
    if template == WorldTemplate():  # for models that bring none
        return False
    content = "\ue000"  # of private use, so that no template has it
    try:
        text = template.render(Conversation([ChatMessage(Role.USER, content)]), _MAX_CHARACTERS).text
    except InvalidRequestError:  # the template wants more than a message of the user
        return False
    return text.partition(content)[0].strip().rpartition("\n")[2] not in prompt


class _TextPrinter:
    """Prints generated text as it comes, and records if it was white space only."""

    def __init__(self, *, strips: bool) -> None:
        """Begin a text. With `strips`, white space at its beginning is left out."""
        self._strips = strips
        self.only_blanks = True

    def print(self, delta: TextDelta) -> None:
        text = delta.text.lstrip() if self._strips and self.only_blanks else delta.text
        self.only_blanks &= not text.strip()
        click.echo(text, nl=False)
        sys.stdout.flush()


def _print_ids(delta: TextDelta) -> None:
    for info in delta.tokens:
        click.echo(f"{info.token} ", nl=False)
    sys.stdout.flush()
