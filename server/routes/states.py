"""States under names: made, listed, copied, moved, advanced and removed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from aiohttp import web

from rnn_engine.interface import EngineLike
from rnn_engine.operations.naming import advance_state, create_state
from rnn_engine.requests import TokenInfo
from server.doors.scopes import Scope
from server.formatting.logprobs import LEAST_LOGPROB, token_text
from server.formatting.usage import usage_of
from server.http.bodies import json_response, long_json_response, read_body
from server.http.context import LEASE, SETTINGS, engine_of
from server.http.routing import MODEL_QUERY, Route
from server.http.work import work
from server.schemas.prompt import tokens_of
from server.schemas.retention import NewStateBody
from server.schemas.state_entry import StateEntry, state_entry
from server.schemas.states import (
    AdvancedState,
    AdvanceStateRequest,
    CreatedState,
    CreateStateRequest,
    ForkStateRequest,
    LeaseEnded,
    LeaseEntries,
    ScoredStateToken,
    StateEntries,
    StateRemoved,
    StateToken,
    TakeStateRequest,
)
from server.state.resolve import resolve_state
from states.named.entry import NamedState
from states.named.store import StateListing


async def list_states(request: web.Request) -> web.Response:
    listing = await engine_of(request).states.list()
    return json_response(_entries(listing.entries, listing))


async def create(request: web.Request) -> web.Response:
    body = await read_body(request, CreateStateRequest)
    engine = engine_of(request, body.cache_salt)
    resolved = await resolve_state(engine, body.state)
    tokens = await work(request, len(body.prompt), partial(tokens_of, engine, body.prompt))
    request.app[SETTINGS].limits.check("max_prompt_tokens", "prompt", len(tokens))
    named, cost = await create_state(
        engine, body.name, tokens, body.retention, initial_state=resolved.frozen, priority=body.priority
    )
    answer: CreatedState = {"object": "state.created", "state": state_entry(named), "usage": usage_of([cost])}
    return json_response(answer)


async def get(request: web.Request) -> web.Response:
    return json_response(state_entry(await engine_of(request).states.get(_name(request))))


async def remove(request: web.Request) -> web.Response:
    removed = await engine_of(request).states.delete(_name(request))
    answer: StateRemoved = {
        "object": "state.deleted",
        "id": str(removed.id),
        "name": removed.name,
        "deleted": True,
    }
    return json_response(answer)


async def open_copy(request: web.Request) -> web.Response:
    body = await read_body(request, NewStateBody)
    [copy] = await engine_of(request).states.fork(_name(request), [body.name], body.retention)
    return json_response(state_entry(copy))


async def fork(request: web.Request) -> web.Response:
    body = await read_body(request, ForkStateRequest)
    states = engine_of(request).states
    forks = await states.fork(_name(request), body.names, body.retention)
    return json_response(_entries(forks, await states.list()))


async def take(request: web.Request) -> web.Response:
    body = await read_body(request, TakeStateRequest)
    states = engine_of(request).states
    named = await states.get(_name(request))
    return json_response(state_entry(await states.move(str(named.id), body.name or named.name, body.retention)))


async def advance(request: web.Request) -> web.Response:
    body = await read_body(request, AdvanceStateRequest)
    if body.mask is not None:
        raise web.HTTPNotImplemented(
            text="mask: a recurrent state has no pages or places that a mask could hide: all that it has taken in is "
            "one sum. Fork the state before what is not to be seen; logit_bias and grammars mask what may be drawn"
        )
    engine = engine_of(request)
    given = body.input_embeddings
    tokens = await work(request, len(body.input), partial(tokens_of, engine, body.input))
    if given is not None:
        tokens = [0] * len(given)  # they stand for nothing
    limits = request.app[SETTINGS].limits
    limits.check("max_prompt_tokens", "input", len(tokens))
    if body.logprobs is not None or body.output_positions:
        alternatives = max(body.logprobs or 0, body.top_k if body.output_positions else 0)
        limits.check("max_logprob_entries", "logprobs", len(tokens) * (1 + alternatives))
    advanced = await advance_state(
        engine,
        _name(request),
        tokens,
        logprobs=body.logprobs,
        top_k=body.top_k,
        output_positions=body.output_positions,
        priority=body.priority,
        embeddings=given,
    )

    def make() -> AdvancedState:
        return {
            "object": "state.advanced",
            "state": state_entry(advanced.named),
            "scored": None if body.logprobs is None else [_scored(engine, info) for info in advanced.scored],
            "next": _likeliest(engine, advanced.top),
            "outputs": [{"position": place, "next": _likeliest(engine, found)} for place, found in advanced.outputs],
            "usage": usage_of([advanced.cost]),
        }

    return await long_json_response(request, len(tokens) + request[LEASE].num_bytes, make)


async def list_leases(request: web.Request) -> web.Response:
    leases = await engine_of(request).states.leases()
    answer: LeaseEntries = {
        "object": "list",
        "data": [
            {
                "object": "lease",
                "owner": lease.owner,
                "ttl": lease.ttl,
                "expires_in": lease.expires_in,
                "states": list(lease.names),
                "bytes": lease.num_bytes,
            }
            for lease in leases
        ],
    }
    return json_response(answer)


async def end_lease(request: web.Request) -> web.Response:
    lease = await engine_of(request).states.end_lease(request.match_info["owner"])
    answer: LeaseEnded = {"object": "lease.ended", "owner": lease.owner, "states": list(lease.names)}
    return json_response(answer)


def _name(request: web.Request) -> str:
    return request.match_info["name"]


def _entries(entries: Sequence[NamedState], listing: StateListing) -> StateEntries:
    """Some of the states, with what is said of all of them."""
    return {
        "object": "list",
        "data": [state_entry(entry) for entry in entries],
        "default": listing.default,
        "bytes": listing.num_bytes,
        "capacity": listing.capacity,
    }


def _scored(engine: EngineLike, info: TokenInfo) -> ScoredStateToken:
    return {**_token(engine, info.token, info.logprob), "top": _likeliest(engine, info.top)}


def _likeliest(engine: EngineLike, tokens: Iterable[tuple[int, float]]) -> list[StateToken]:
    return [_token(engine, token, logprob) for token, logprob in tokens]


def _token(engine: EngineLike, token: int, logprob: float | None) -> StateToken:
    known = None if logprob is None else max(logprob, LEAST_LOGPROB)
    return {"id": token, "token": token_text(token, engine.detokenize([token])), "logprob": known}


ROUTES = (
    Route(
        "GET",
        "/v1/leases",
        list_leases,
        "What owners have leased, the newest first.",
        LeaseEntries,
        query=MODEL_QUERY,
        ai00_paths=False,
    ),
    Route(
        "DELETE",
        "/v1/leases/{owner}",
        end_lease,
        "End the lease of an owner, with all of its states.",
        LeaseEnded,
        query=MODEL_QUERY,
        scope=Scope.MANAGE,
        ai00_paths=False,
    ),
    Route("GET", "/v1/states", list_states, "The states that have names.", StateEntries, ai00_paths=False),
    Route(
        "POST",
        "/v1/states",
        create,
        "Run a prompt and name the state after it.",
        CreatedState,
        request=CreateStateRequest,
        scope=Scope.MANAGE,
        ai00_paths=False,
    ),
    Route("GET", "/v1/states/{name}", get, "The state of that name or id.", StateEntry, ai00_paths=False),
    Route("DELETE", "/v1/states/{name}", remove, "Remove a state.", StateRemoved, scope=Scope.MANAGE, ai00_paths=False),
    Route(
        "POST",
        "/v1/states/{name}/open",
        open_copy,
        "Copy a state under another name.",
        StateEntry,
        request=NewStateBody,
        scope=Scope.MANAGE,
        ai00_paths=False,
    ),
    Route(
        "POST",
        "/v1/states/{name}/fork",
        fork,
        "Copy a state under several names.",
        StateEntries,
        request=ForkStateRequest,
        scope=Scope.MANAGE,
        ai00_paths=False,
    ),
    Route(
        "POST",
        "/v1/states/{name}/take",
        take,
        "Move a state to another owner or name; the old name is gone.",
        StateEntry,
        request=TakeStateRequest,
        scope=Scope.MANAGE,
        ai00_paths=False,
    ),
    Route(
        "POST",
        "/v1/states/{name}/advance",
        advance,
        "Let a name stand for its state after more tokens, and read out log-probabilities. "
        "Calls for one state run in the order in which they come.",
        AdvancedState,
        request=AdvanceStateRequest,
        scope=Scope.MANAGE,
        ai00_paths=False,
    ),
)
