"""Run the engine requests that one HTTP request for generation asks for, and answer whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aiohttp import web

from rnn_engine.operations.parallel import Numbered, ParallelRequests
from rnn_engine.requests import Event, Finished, GenerateRequest, PromptScored, TextDelta
from server.apis.common.dialect import ChoiceOutcome, Dialect, Tally, WholeDialect
from server.apis.common.generation import GenerationBody
from server.apis.common.states import EndSaver, ResolvedState
from server.auth.engine import engine_of
from server.core.bodies import LEASE, long_json_response, work
from server.core.errors import describe
from server.core.settings import SETTINGS
from server.core.streams import EVENT_STREAM, EventStream


async def answer_in(
    dialect: Dialect,
    request: web.Request,
    body: GenerationBody,
    calls: Sequence[GenerateRequest],
    resolved: ResolvedState,
    *,
    stream_type: str = EVENT_STREAM,
) -> web.StreamResponse:
    """Run the engine requests `calls` and answer in the form of `dialect`, whole or as a stream.

    All `calls` must have been checked and must start at the state `resolved`. `stream_type` is the content type of a
    stream. Raises InvalidRequestError or OverloadedError before any of them runs.
    """
    if not body.stream:
        return await answer_whole(dialect, request, body, calls, resolved)
    running, end = await _prepare(request, body, calls, resolved)
    async with running:
        return await _Streaming(EventStream(request, stream_type), request, dialect, Tally(body.copies), end).run(
            running
        )


async def _prepare(
    request: web.Request, body: GenerationBody, calls: Sequence[GenerateRequest], resolved: ResolvedState
) -> tuple[ParallelRequests, _End]:
    """Return the engine requests, not yet started, and the `_End` that saves the state at their end if wanted."""
    engine = engine_of(request, body.cache_salt)
    seconds = body.timeout or request.app[SETTINGS].limits.max_request_seconds
    calls = [replace(call, deadline=time.monotonic() + seconds) for call in calls]
    saver = None if body.save_as is None else await EndSaver.create(engine, body.save_as, resolved, calls)
    if saver is not None:
        calls = [saver.call]
    return ParallelRequests(engine, calls, limit=engine.info.num_slots), _End(saver)


class _End:
    """Saves the state after the only engine request, if a `saver` is given, and reports it in the answer's fields."""

    def __init__(self, saver: EndSaver | None) -> None:
        self.is_wanted = saver is not None
        self._saver = saver
        self._outcome = ChoiceOutcome()

    async def note(self, event: Event) -> Mapping[str, object]:
        """Take the next event of the engine request; at its last event, save the state.

        Return the answer's fields about the saved state, or about the error of saving it; none before the last event.
        """
        if self._saver is None:
            return {}
        self._outcome.add(event)
        if not isinstance(event, Finished):
            return {}
        try:
            return {"saved_state": await self._saver.save(self._outcome.tokens, event)}
        except Exception as error:  # the answer is complete: send it without its state
            return {"saved_state": None, "save_error": describe(error).body["error"]}


async def answer_whole(
    dialect: WholeDialect,
    request: web.Request,
    body: GenerationBody,
    calls: Sequence[GenerateRequest],
    resolved: ResolvedState,
) -> web.Response:
    """Run the engine requests `calls` and answer when all have ended; see `answer_in`."""
    running, end = await _prepare(request, body, calls, resolved)
    tally = Tally(body.copies)
    outcomes = [ChoiceOutcome() for _ in running.requests]
    saved: Mapping[str, object] = {}
    async with running:
        async for events in running:
            for index, event in events:
                tally.add(index, event)
                outcomes[index].add(event)
                saved = await end.note(event)

    def make() -> Mapping[str, object] | Sequence[Mapping[str, object]]:
        return dialect.whole(list(_best(outcomes, body.copies, body.n)), outcomes, tally.usage(), saved)

    size = sum(len(outcome.prompt) + len(outcome.tokens) for outcome in outcomes) * (1 + (body.alternatives or 0))
    return await long_json_response(request, size + request[LEASE].num_bytes, make)


def _best(outcomes: Sequence[ChoiceOutcome], copies: int, wanted: int) -> Iterator[int]:
    """Yield the indices of the `wanted` copies to return for each prompt, ordered by their mean log-probability.

    If all copies are wanted, they keep their order.
    """
    for first in range(0, len(outcomes), copies):
        places = range(first, first + copies)
        yield from (
            places if wanted == copies else sorted(places, key=lambda place: -outcomes[place].mean_logprob)[:wanted]
        )


class _Streaming:
    """Sends the answer to one HTTP request as a stream, event by event."""

    def __init__(self, stream: EventStream, request: web.Request, dialect: Dialect, tally: Tally, end: _End) -> None:
        self._request = request
        self._stream = stream
        self._dialect = dialect
        self._tally = tally
        self._end = end

    async def run(self, running: ParallelRequests) -> web.StreamResponse:
        """Send the whole stream and return the response.

        An error before the first event is raised, so that it gets its own HTTP status; a later error is sent as an
        event.
        """
        groups = aiter(running)
        group: list[Numbered] | None = await anext(groups)
        await self._stream.open()
        try:
            while group is not None:
                await self._send(group)
                group = await anext(groups, None)
            await self._stream.write(self._dialect.ending(self._tally.usage()))
        except ConnectionError:
            raise
        except Exception as error:
            failure = partial(self._dialect.failure, error)
            await self._stream.write(await work(self._request, self._request[LEASE].num_bytes, failure))
        return await self._stream.close()

    async def _send(self, events: Sequence[Numbered]) -> None:
        """Write `events`, which are ready at the same time; save the state at the last event if wanted.

        The events before the last one are written first, since saving may take long.
        """
        parts: list[bytes] = []
        for index, event in events:
            self._tally.add(index, event)
            saved: Mapping[str, object] = {}
            if self._end.is_wanted:
                if isinstance(event, Finished):
                    await self._stream.write(b"".join(parts))  # saving takes a while
                    parts.clear()
                saved = await self._end.note(event)
            encode = partial(self._dialect.event, index, event, saved)
            parts.append(encode() if isinstance(event, TextDelta) else await self._encode(event, encode))
        await self._stream.write(b"".join(parts))

    async def _encode(self, event: Event, encode: Callable[[], bytes]) -> bytes:
        """Call `encode`, which encodes an `event` that is no text; use another thread if the event may be large."""
        size = self._request[LEASE].num_bytes + (len(event.tokens) if isinstance(event, PromptScored) else 0)
        return await work(self._request, size, encode)
