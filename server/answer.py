"""Runs the engine requests of one call and answers it, whole or as a stream.

Knows the order of events and the frame around the choices; what a choice looks like is the form's.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from aiohttp import web

from rnn_engine.interface import EngineLike
from rnn_engine.operations.parallel import ParallelRequests
from rnn_engine.requests import (
    Event,
    Finished,
    GenerateRequest,
    PromptScored,
    Started,
    TextDelta,
)
from server.formatting.choices import Choice, ChoiceFormatter, Outcome
from server.formatting.usage import Tally
from server.http.bodies import json_response
from server.http.context import ENGINE
from server.http.errors import describe
from server.http.sse import EventStream
from server.schemas.generation import GenerationBody
from server.state.resolve import ResolvedState
from server.state.saving import EndSaver


async def answer(
    request: web.Request,
    body: GenerationBody,
    form: ChoiceFormatter,
    calls: Sequence[GenerateRequest],
    resolved: ResolvedState,
) -> web.StreamResponse:
    """Run `calls`, one a choice, all of which start at `resolved`, and answer.

    Raises InvalidRequestError before any of them runs.
    """
    engine = request.app[ENGINE]
    for call in calls:
        call.check(engine.info.shape, engine.info.max_logprobs)
    saver = None if body.save_as is None else EndSaver(engine, body.save_as, resolved, calls)
    if saver is not None:
        calls = [saver.call]
    frame = ResponseEnvelope(engine, form, saver)
    async with ParallelRequests(engine, calls, limit=engine.info.num_slots) as running:
        if body.stream:
            return await _stream(request, running, frame, Tally(body.copies), body.include_usage)
        return await _whole(running, frame, body)


class ResponseEnvelope:
    """The object around the choices: the same id, time and model in every chunk."""

    def __init__(self, engine: EngineLike, form: ChoiceFormatter, saver: EndSaver | None) -> None:
        self.form = form
        self._saver = saver
        self._outcome = Outcome()  # of the one call, where its end is kept
        self._common = {
            "id": f"{form.id_prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": engine.info.model,
        }

    async def saved(self, event: Event) -> Mapping[str, object]:
        """What the answer says of its end, which is kept where that is wanted. Called with every event in order."""
        if self._saver is None:
            return {}
        self._outcome.add(event)
        if not isinstance(event, Finished):
            return {}
        return {"saved_state": await self._saver.save(self._outcome.tokens, event)}

    def whole(self, choices: Sequence[Choice], tally: Tally, **extra: object) -> Mapping[str, object]:
        return {"object": self.form.object, **self._common, "choices": choices, "usage": tally.usage(), **extra}

    def chunk(self, choices: Sequence[Choice], **extra: object) -> Mapping[str, object]:
        return {"object": self.form.chunk_object, **self._common, "choices": choices, **extra}


async def _whole(running: ParallelRequests, frame: ResponseEnvelope, body: GenerationBody) -> web.Response:
    tally = Tally(body.copies)
    outcomes = [Outcome() for _ in running.requests]
    choices: dict[int, Choice] = {}
    means: dict[int, float] = {}
    extra: Mapping[str, object] = {}
    async for index, event in running:
        tally.add(index, event)
        outcomes[index].add(event)
        extra = await frame.saved(event)
        if isinstance(event, Finished):
            choices[index] = frame.form.whole(index, outcomes[index], event)
            means[index] = _mean_logprob(outcomes[index], event)
    kept = _best([means[index] for index in range(len(means))], body.copies, body.n)
    in_order = [{**choices[place], "index": index} for index, place in enumerate(kept)]
    return json_response(frame.whole(in_order, tally, **extra))


def _mean_logprob(outcome: Outcome, finished: Finished) -> float:
    """Over all tokens that were drawn, a stop token included; 0 where none was."""
    drawn = [*outcome.tokens, *([] if finished.stop_token is None else [finished.stop_token])]
    return math.fsum(info.logprob for info in drawn if info.logprob is not None) / max(len(drawn), 1)


def _best(means: Sequence[float], copies: int, wanted: int) -> Iterator[int]:
    """The places of each prompt's `wanted` best copies, best first; where all are wanted, in their order."""
    for first in range(0, len(means), copies):
        places = range(first, first + copies)
        yield from places if wanted == copies else sorted(places, key=lambda place: -means[place])[:wanted]


async def _stream(
    request: web.Request, running: ParallelRequests, frame: ResponseEnvelope, tally: Tally, include_usage: bool
) -> web.StreamResponse:
    stream = EventStream(request)
    events = aiter(running)
    first = await anext(events)  # what fails up to here has a status of its own
    await stream.open()
    extra = {"usage": None} if include_usage else {}
    try:
        async for index, event in _chain(first, events):
            tally.add(index, event)
            saved = await frame.saved(event)
            choice = _choice(frame.form, index, event, scored=running.requests[index].score_from is not None)
            if choice is not None:
                await stream.send(frame.chunk([choice], **extra, **saved))
        if include_usage:
            await stream.send(frame.chunk([], usage=tally.usage()))
        await stream.done()
    except ConnectionError:
        raise
    except Exception as error:
        await stream.send(describe(error).body)
    return await stream.close()


async def _chain(first: tuple[int, Event], rest: AsyncIterator[tuple[int, Event]]) -> AsyncIterator[tuple[int, Event]]:
    yield first
    async for item in rest:
        yield item


def _choice(form: ChoiceFormatter, index: int, event: Event, scored: bool) -> Choice | None:
    match event:
        case Started():
            return None if scored else form.opening(index, ())
        case PromptScored():
            return form.opening(index, event.tokens)
        case TextDelta():
            return form.delta(index, event)
        case Finished():
            return form.closing(index, event)
