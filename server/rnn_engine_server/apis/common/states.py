"""The states that requests start from, mix or save: the request fields, and functions that find and save the states."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NotRequired, Self, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.naming import check_room, settle_end
from rnn_engine.requests import Event, Finished, GenerateRequest, MixedState, StateMix, TextDelta, TokenInfo
from rnn_engine.sampling.params import MixKind
from rnn_engine.types import F32, InitialState
from rnn_engine_server.core.errors import describe
from rnn_engine_server.core.schema import (
    NULL,
    STRING,
    ErrorDetail,
    Parsed,
    RefusedError,
    RequestBody,
    described,
    is_integers,
)
from rnn_engine_server.core.settings import Limits
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.reading import StateForm
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState
from rnn_engine_states.named.entry import NamedState, Retention, check_changeable

_FORMS = (
    'a name or an id, "none", {"data": numbers or base64 of f32, "shape": [D, N + 2, L, 1]} or '
    '{"path": a file}; the last two may also have name and id'
)
_MIX_FORM = (
    "a list of objects, each with a weight and one of name, id, path, or data and shape; all except the first "
    "may also have a prompt"
)
_MAX_NAME_BYTES = 255  # of a file or folder, on every usual file system
_LABELS = {"name", "id"}  # ai00's clients send them; here only the values of a state count


@dataclass(frozen=True, slots=True, eq=False)
class InlineState:
    """A state that a request gives as an array of numbers, in the order of ai00's prefab format."""

    data: F32  # [L * (N + 2) * D] unless the client is wrong
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StatePath:
    """A request's reference to a state's file: its path relative to the folder of states."""

    path: str


StateRef: TypeAlias = str | InlineState | StatePath


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRef:
    """One entry of a mix of states in a request: a reference to a state, its weight, and maybe a prompt of its own."""

    ref: StateRef | None  # None = the default state
    weight: float
    prompt: str | None = None  # instead of the request's


def _parse_state(value: object) -> StateRef:
    match value:
        case str() if 0 < len(value) <= _MAX_NAME_BYTES:
            return value
        case {"data": data, "shape": [_, _, _, _] as shape, **rest} if rest.keys() <= _LABELS and is_integers(shape):
            return InlineState(_parse_numbers(data), tuple(shape))
        case {"path": str(path), **rest} if rest.keys() <= _LABELS:
            if any(len(part.encode()) > _MAX_NAME_BYTES for part in path.split("/")):
                raise RefusedError(path, f"a path whose parts have at most {_MAX_NAME_BYTES} bytes each", below="path")
            return StatePath(path)
    raise RefusedError(value, _FORMS)


def _parse_states(value: object) -> StateRef | tuple[WeightedRef, ...]:
    if not isinstance(value, list):
        return _parse_state(value)
    if not value:
        raise RefusedError(value, _MIX_FORM)
    return tuple(_parse_weighted(number, item) for number, item in enumerate(value))


def _parse_weighted(number: int, value: object) -> WeightedRef:
    match value:
        case {"weight": int() | float() as weight, **state} if not isinstance(weight, bool):
            prompt = state.pop("prompt", None)
            if prompt is not None and (number == 0 or not isinstance(prompt, str)):
                what = "null, since the first state takes the prompt of the request" if number == 0 else "a text"
                raise RefusedError(prompt, what, below=f"{number}.prompt")
            try:
                return WeightedRef(_parse_labelled(state), float(weight), prompt)
            except OverflowError:
                allowed = "a number that fits a 64-bit float"
                raise RefusedError(weight, allowed, below=f"{number}.weight") from None
            except RefusedError as error:
                below = str(number) if error.below is None else f"{number}.{error.below}"
                raise RefusedError(error.value, error.allowed, below=below) from None
    raise RefusedError(value, _MIX_FORM, below=str(number))


def _parse_labelled(state: dict[object, object]) -> StateRef | None:
    """Return the reference to a state in one entry of a mix, without its weight and prompt; None is the default state.

    Raises RefusedError.
    """
    if not state.keys() <= _LABELS:
        return _parse_state(state)
    labels = [label for label in state.values() if label is not None]
    if len(labels) > 1 or not all(isinstance(label, str) for label in labels):
        raise RefusedError(state, "a name or an id, not both, as a string")
    return _parse_state(labels[0]) if labels else None


def _parse_numbers(data: object) -> F32:
    """Return an array of numbers that a request gives as a flat list or as base64 of f32. Raises RefusedError."""
    try:
        if isinstance(data, str):
            return np.frombuffer(base64.b64decode(data, validate=True), "<f4").astype(np.float32)
        if isinstance(data, list) and set(map(type, data)) <= {int, float}:  # numpy pads strings to the longest
            with np.errstate(over="ignore"):  # what does not fit f32 is refused later, as infinity
                return np.array(data, np.float64).astype(np.float32)
    except (binascii.Error, ValueError, OverflowError):
        pass
    raise RefusedError(data, "a flat list of numbers, or base64 of f32 numbers", below="data")


_INLINE = {
    "type": "object",
    "properties": {"data": {"type": "array", "items": {"type": "number"}}, "shape": {"type": "array"}},
}
_PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
State: TypeAlias = Annotated[StateRef | None, Parsed(_parse_state, STRING, _INLINE, _PATH, NULL)]
_WEIGHTED = {
    "type": "object",
    "properties": {"name": STRING, "id": STRING, "weight": {"type": "number"}, "prompt": STRING},
    "required": ["weight"],
}
States: TypeAlias = Annotated[
    StateRef | tuple[WeightedRef, ...] | None,
    Parsed(_parse_states, STRING, _INLINE, _PATH, {"type": "array", "items": _WEIGHTED}, NULL),
]

_STATE_FORMS = (
    "The state to start from: its name or id; `none` for an empty one; a state in ai00's order, as "
    '{"data": ..., "shape": ...}; or {"path": ...}, a file in the folder of states. Null is the default state.'
)


class CacheBody(RequestBody):
    """The request field for use of the cache, which every request that runs the model has."""

    cache_salt: str | None = Field(
        default=None,
        min_length=1,
        description="Only requests with the same API key and the same salt continue from what this request leaves in "
        "the cache, as with vLLM. Keep the salt secret if it separates people who share a key.",
    )


class StateRefBody(CacheBody):
    """The request fields for running the model from one state."""

    state: State = Field(default=None, description=_STATE_FORMS)


class ModelNameBody(RequestBody):
    """The request field that names a model, as in OpenAI's requests."""

    model: str | None = Field(
        default=None, description="The name of a model as `/v1/models` lists it; null is the default model."
    )


class ModelBody(StateRefBody, ModelNameBody):
    """The request fields that name a state to start from and a model."""


class MixBody(CacheBody, ModelNameBody):
    """The request fields that name a model, and one state to start from or several states to mix."""

    state: States = Field(
        default=None,
        description=f"{_STATE_FORMS} A list mixes states. Each of its objects has a `weight`, and one of `name`, `id`, "
        "`path`, or `data` and `shape`; null or none of them is the default state. All except the first may "
        "have a `prompt`, a text that this state takes in instead of the request's. Each state takes a slot. "
        "`save_as` keeps the first state.",
    )
    mix: MixKind = Field(
        default="log",
        description="How the next-token distributions of several states are mixed. `log` is the weighted sum of their "
        "log-probabilities: a negative weight makes tokens likely that its state does not expect. "
        "`probability` is the weighted mean of their probabilities.",
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.weighted is not None:
            limits.check("max_mixed_states", "state", len(self.weighted))
            prompt_bytes = sum(len((one.prompt or "").encode()) for one in self.weighted)
            limits.check("max_text_bytes", "state", prompt_bytes)

    @property
    def weighted(self) -> tuple[WeightedRef, ...] | None:
        """The states that the request mixes; None if it starts from a single state."""
        return self.state if isinstance(self.state, tuple) else None


# How to keep a new state: its name, its owner and its lifetime.


class RetentionBody(RequestBody):
    """The request fields for the owner of a new state, and for how long the state is kept."""

    always_strict: ClassVar = True

    owner: str | None = Field(
        default=None,
        description="The owner of the lease that keeps the state. Null: a lease of its own, under the state's name.",
    )
    ttl: float | None = Field(
        default=None,
        description="Seconds without use after which the owner's lease ends, with all its states. Null: as in the "
        "owner's present lease, or an hour if there is none.",
    )
    persistent: bool = Field(
        default=False, description="Keep the state until it is removed, also over restarts. It then has no owner."
    )

    shared: bool = Field(
        default=False,
        description="Let every API key start from the state and copy it. Needs the scope `admin`. Without keys all "
        "states are shared.",
    )

    @property
    def retention(self) -> Retention:
        return Retention(self.owner, self.ttl, self.persistent, self.shared)


class NewStateBody(RetentionBody):
    """The request fields for the name of a new state, its owner, and how long it is kept."""

    name: str = Field(description="A name that is free.")


SaveAs: TypeAlias = Annotated[
    NewStateBody, BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
]


class StateEntry(TypedDict):
    """The description of a named state.

    `num_tokens` is how many tokens the model has read to reach it, null if that is unknown. A `read_only` state comes
    from the operator at every start: requests may start from it and copy it.
    """

    object: Literal["state"]
    id: str
    name: str
    form: StateForm
    source: str
    created: int
    digest: str
    num_tokens: int | None
    has_shifts: bool
    has_logits: bool
    bytes: int
    owner: str | None
    persistent: bool
    read_only: bool
    expires_in: float | None


class SavedState(TypedDict):
    """The fields of an answer whose request has `save_as`: the state, or null and why it can't be saved."""

    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]


def state_entry(named: NamedState) -> StateEntry:
    """Return the description of a named state that clients get."""
    frozen = named.frozen
    return described(
        StateEntry,
        named,
        object="state",
        id=str(named.id),
        created=int(named.created),
        digest=frozen.digest,
        num_tokens=frozen.num_tokens,
        has_shifts=frozen.has_shifts,
        has_logits=frozen.logits is not None,
        bytes=frozen.num_bytes,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedState:
    """The state that a request starts from, after it was found in the engine or in files."""

    frozen: FrozenState | None  # None = the fill values
    named: NamedState | None = None  # if the request says its name or id

    @property
    def initial_state(self) -> InitialState | None:
        return None if self.frozen is None else self.frozen.for_request


@dataclass(frozen=True, slots=True, eq=False)
class WeightedState(ResolvedState):
    """One of the states that a request starts from, with its weight in the request's mix."""

    weight: float = 1.0
    prompt: str | None = None  # instead of the request's


async def resolve_starts(engine: EngineLike, body: MixBody) -> list[WeightedState]:
    """Find all states that a request starts from: one, or those that it mixes.

    See `resolve_state` for the errors.
    """
    refs = [WeightedRef(body.state, 1.0)] if not isinstance(body.state, tuple) else body.state
    found = [await resolve_state(engine, one.ref) for one in refs]
    return [
        WeightedState(state.frozen, state.named, one.weight, one.prompt) for state, one in zip(found, refs, strict=True)
    ]


async def resolve_state(engine: EngineLike, ref: StateRef | None) -> ResolvedState:
    """Find the state that a request's `ref` names. None and ai00's id of zeros stand for the default state.

    Raises NotFoundError if there is no such name, id or file, InvalidRequestError for a path that leaves the folder,
    and StateError for a state that does not fit the model.
    """
    states = engine.states
    match ref:
        case None | "00000000-0000-0000-0000-000000000000":  # ai00's id of no state in particular
            default = await states.default()
            return ResolvedState(None if default is None else default.frozen)
        case str() if ref == NO_INITIAL_STATE:
            return ResolvedState(None)
        case str():
            named = await states.get(ref)
            return ResolvedState(named.frozen, named)
        case InlineState() | StatePath():
            return ResolvedState(await asyncio.to_thread(_load, engine.state_files, ref))


def _load(files: StateFiles, ref: InlineState | StatePath) -> FrozenState:
    if isinstance(ref, StatePath):
        return files.freeze(files.read_requested(ref.path), ref.path)
    return files.freeze(files.read_rows(ref.data, ref.shape), "state")


def mix_calls(body: MixBody, starts: Sequence[WeightedState], calls: Sequence[GenerateRequest]) -> GenerateRequest:
    """Combine `calls`, one for each state that a request starts from, into the one engine request for an answer.

    It is `calls[0]`, with a mix of the states of all `calls` if `body` asks for one. The calls differ only in their
    states and prompts.
    """
    if body.weighted is None:
        return calls[0]
    others = [
        MixedState(start.weight, call.initial_state, call.prompt, call.turn_positions, call.checkpoint_positions)
        for start, call in zip(starts[1:], calls[1:], strict=True)
    ]
    return replace(calls[0], mix=StateMix(starts[0].weight, others, body.mix))


class EndSaver:
    """Saves the state at the end of a request's only answer, as a named state with the name that the request gives.

    That may be the name of the state that the request starts from; the name then stands for the new state.
    """

    def __init__(
        self, engine: EngineLike, wanted: NewStateBody, resolved: ResolvedState, call: GenerateRequest
    ) -> None:
        self._engine = engine
        self._wanted = wanted
        self._resolved = resolved
        self._tokens: list[TokenInfo] = []  # of the answer
        self.call = replace(call, keep_end=True)

    @classmethod
    async def create(
        cls, engine: EngineLike, wanted: NewStateBody, resolved: ResolvedState, calls: Sequence[GenerateRequest]
    ) -> Self:
        """Return an `EndSaver` for a request whose only answer is the engine request in `calls`.

        Raises InvalidRequestError if there are several calls, and the errors of saving the state that can be foreseen.
        """
        if len(calls) != 1:
            raise InvalidRequestError(
                "save_as",
                wanted.name,
                f"null, since only a request with one answer can save its state; this one has {len(calls)}",
            )
        saver = cls(engine, wanted, resolved, calls[0])
        continued = saver._continued
        if continued is None:
            try:
                await check_room(engine, wanted.name, wanted.retention)
            except InvalidRequestError as error:
                field = "save_as" if error.field == "name" else f"save_as.{error.field}"
                raise InvalidRequestError(field, error.value, error.allowed) from None
            return saver
        check_changeable(continued, "save_as")
        if wanted.retention != Retention():
            raise InvalidRequestError(
                "save_as", wanted.retention, "only a name, since the name of `state` keeps its owner and lease"
            )
        return saver

    async def note(self, event: Event) -> Mapping[str, object]:
        """Process the next event of the engine request, and save the state if the event is the last one.

        Return the answer's fields about the saved state, or about the error of saving it; none before the last event.
        """
        if isinstance(event, TextDelta):
            self._tokens.extend(event.tokens)
        if not isinstance(event, Finished):
            return {}
        try:
            return {"saved_state": await self._save(event)}
        except Exception as error:  # the answer is complete: send it without its state
            return {"saved_state": None, "save_error": describe(error).body["error"]}

    async def _save(self, finished: Finished) -> StateEntry:
        """Save the state after the answer as a named state, and return its description."""
        assert finished.end is not None  # it was asked for
        states, old = self._engine.states, self._continued
        text = _text_of(self._tokens, finished)
        frozen = await settle_end(self._engine, self._resolved.frozen, self.call, finished.end, text)
        if old is not None:
            return state_entry(await states.compare_and_set(old, frozen, source="answer"))
        wanted = self._wanted
        return state_entry(await states.put(wanted.name, frozen, wanted.retention, source="answer"))

    @property
    def _continued(self) -> NamedState | None:
        """The named state that the request starts from, if the request saves the answer's state under the same name."""
        named = self._resolved.named
        return named if named is not None and named.name == self._wanted.name else None


def _text_of(tokens: Sequence[TokenInfo], finished: Finished) -> bytes:
    """Return the bytes of the generated tokens, cut before the stop string that ended the text."""
    text = b"".join(info.data for info in tokens)
    if not isinstance(finished.stop, bytes) or not tokens:
        return text
    begin = text.find(finished.stop, max(len(text) - len(tokens[-1].data) - len(finished.stop) + 1, 0))
    return text if begin < 0 else text[:begin]
