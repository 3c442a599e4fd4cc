"""Run one request of an `LLM` to its end, and turn its events into a completion."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from rnn_engine.chat_template import ToolCall
from rnn_engine.chat_template.answer import AnswerForm, AnswerPart, AnswerReader, Piece, whole_calls
from rnn_engine.engine import Engine
from rnn_engine.errors import StepError
from rnn_engine.llm.prompts import Asked, Start
from rnn_engine.llm.results import Completion
from rnn_engine.llm.state import State
from rnn_engine.operations.naming import settle_end
from rnn_engine.requests import Finished, Started, TextDelta, TokenInfo


async def complete(engine: Engine, asked: Asked, start: Start, *, keep_state: bool) -> Completion:
    """Run one request to its end."""
    request = replace(asked.request, keep_end=keep_state)
    started, finished = Started(0, 0), None
    text: list[str] = []
    tokens: list[TokenInfo] = []
    async with aclosing(engine.generate(request, wait_for_room=True)) as events:
        async for event in events:
            match event:
                case Started():
                    started = event
                case TextDelta():
                    text.append(event.text)
                    tokens += event.tokens
                case Finished():
                    finished = event
    if finished is None:
        raise StepError("the generation ended early")
    whole = "".join(text)
    state = None
    if finished.end is not None:
        frozen = await settle_end(engine, start.states[0][0], request, finished.end, whole.encode())
        state = State.of(frozen, engine.state_files)
    return _completion(asked.form, whole, tokens, started, finished, state)


def _completion(
    form: AnswerForm, text: str, tokens: Sequence[TokenInfo], started: Started, finished: Finished, state: State | None
) -> Completion:
    reader = AnswerReader(form)
    pieces = whole_calls(reader, [*reader.feed(text), *reader.finish()])
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.part is AnswerPart.CALL:
            calls.append(ToolCall(piece.text, ""))
        elif piece.part is AnswerPart.ARGUMENTS:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + piece.text)
    return Completion(
        text=joined(pieces, AnswerPart.CONTENT),
        tokens=tuple(info.token for info in tokens),
        finish_reason=finished.reason,
        prompt_tokens=started.prompt_tokens,
        cached_tokens=started.cached_tokens,
        completion_tokens=finished.completion_tokens,
        seed=finished.seed,
        logprobs=tuple(tokens) if tokens and tokens[0].logprob is not None else (),
        reasoning=joined(pieces, AnswerPart.REASONING) or None,
        tool_calls=tuple(calls),
        state=state,
    )


def joined(pieces: Sequence[Piece], part: AnswerPart) -> str:
    """Return the text of the pieces that belong to `part`."""
    return "".join(piece.text for piece in pieces if piece.part is part)
