"""OpenAI's embeddings: the vectors of texts."""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, check_token_ids
from rnn_engine.interface import EngineLike
from rnn_engine.operations.embedding import Embedding, EmbeddingSettings, Layers, Pooling, embed, find_centre
from rnn_engine.operations.parallel import Cost
from rnn_engine.types import F32, EmbeddingTask, ModelShape
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import (
    PROMPT_FORMS,
    AnyPrompt,
    Prompts,
    check_prompts,
    parse_prompts,
    tokens_of,
)
from rnn_engine_server.apis.common.messages import TEXT_PART, parse_content
from rnn_engine_server.apis.common.states import ModelBody, resolve_state
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import JSON_TEXT, RouteTable, Stream
from rnn_engine_server.core.schema import INTEGER, INTEGERS, Parsed, RefusedError, Schema, Usage, is_integers
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.core.workers import CALL_WORK, work

Encoding: TypeAlias = Literal["float", "base64"]

_DEFAULT = EmbeddingSettings()


def parse_layer(value: object) -> Layers:
    if value == "all":
        return "all"
    if value == "mean":
        return "mean"
    if type(value) is int:
        return value
    if is_integers(value) and value:
        return tuple(value)
    raise RefusedError(value, 'a layer\'s number, a list of numbers, "all" or "mean"')


_TASKS: Mapping[str, EmbeddingTask] = {
    "[RETR]": "retrieval",
    "[STS]": "similarity",
    "[CLS]": "classification",
    "retrieval.query": "retrieval",
    "retrieval.passage": "retrieval",
    "text-matching": "similarity",
}
"""Other names of the tasks of vectors: EmbeddingRWKV's and Jina's."""


def parse_task(value: object) -> object:
    return _TASKS.get(value, value) if isinstance(value, str) else value


def _parse_inputs(value: object) -> tuple[AnyPrompt, ...]:
    """Parse the inputs of an embeddings request: prompts, or objects with text parts as in chats.

    Such an object is replaced by its text, then `parse_prompts` parses the result.
    """
    if isinstance(value, list):
        return parse_prompts([_plain_input(item) for item in value])
    return parse_prompts(_plain_input(value))


def _plain_input(value: object) -> object:
    match value:
        case {"content": list(parts)}:
            return parse_content(parts)
    return value


_PARTS = {"type": "object", "properties": {"content": {"type": "array", "items": TEXT_PART}}}
Inputs: TypeAlias = Annotated[
    tuple[AnyPrompt, ...], Parsed(_parse_inputs, *PROMPT_FORMS, _PARTS, {"type": "array", "items": _PARTS})
]
LAYER_FORMS: tuple[Schema, ...] = (INTEGER, INTEGERS, {"enum": ["all", "mean"]})


class EmbeddingsRequest(ModelBody):
    """A request for vectors of texts. A model made for embedding has vectors of its own for each `task`; those of any
    other model are made from its states after the texts, as `layer`, `part` and `pooling` say."""

    ignored: ClassVar = frozenset({"metadata", "user"})

    input: Inputs = Field(
        description="Texts, token ids, or objects with `content`, a list of text parts; one entry each, none empty."
    )
    encoding_format: Encoding = Field(
        default="float", description="Numbers, or their bytes (f32, little-endian) as base64."
    )
    layer: Annotated[Layers, Parsed(parse_layer, *LAYER_FORMS)] = Field(
        default=_DEFAULT.layer,
        description="The number of a layer, counted from the end if negative; a list of numbers, whose vectors are "
        "joined; `all`, joined; or their `mean`.",
    )
    part: str | None = Field(
        default=_DEFAULT.part,
        description=(
            "A field of the state (from RWKV-5 on: `att_shift`, `wkv`, `ffn_shift`; of RWKV-4: `att_shift`, "
            "`aa`, `bb`, `pp`, `ffn_shift`), or `all`, which joins them, each scaled to length 1. Null is "
            "`wkv`; for RWKV-4 it is `all`."
        ),
    )
    pooling: Pooling = Field(
        default=_DEFAULT.pooling,
        description="How `wkv` is reduced: to one number for each key or each value of a head; `all` keeps all "
        "numbers.",
    )
    dimensions: int | None = Field(
        default=_DEFAULT.dimensions, description="Project the vector to this many numbers. Null keeps it as it is."
    )
    normalize: bool = Field(default=_DEFAULT.normalize, description="Scale every vector to length 1.")
    task: Annotated[EmbeddingTask | None, BeforeValidator(parse_task)] = Field(
        default=None,
        description="What the vectors are for, of a model made for embedding; null is `retrieval`. EmbeddingRWKV's "
        "names, such as `[STS]`, and Jina's, such as `text-matching`, mean the same.",
    )
    center_on: Prompts = Field(
        default=(), description="Texts or token ids whose mean vector is subtracted from every vector."
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_inputs", "input", len(self.input))
        check_prompts(limits, "input", self.input)
        limits.check("max_inputs", "center_on", len(self.center_on))
        check_prompts(limits, "center_on", self.center_on)

    def settings_for(self, shape: ModelShape) -> EmbeddingSettings:
        """Return the settings for a model of this `shape`; the defaults of a dialect are only for vectors of states."""
        settings = EmbeddingSettings(dimensions=self.dimensions, normalize=self.normalize, task=self.task)
        if shape.has_head or not self.model_fields_set.isdisjoint(("layer", "part", "pooling")):
            settings = replace(settings, layer=self.layer, part=self.part, pooling=self.pooling)
        return settings


class EmbeddingEntry(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    """The answer with the embeddings: one entry for each input, in the order of the inputs."""

    id: str
    object: Literal["list"]
    model: str
    data: list[EmbeddingEntry]
    usage: Usage


_NUMBERS_A_PIECE = 1 << 12
_SENT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class VectorEntry:
    """One entry of the JSON list to send: plain `fields`, and a field called `name` with the numbers of `vector`."""

    fields: Mapping[str, object]
    name: str
    vector: F32  # [any] finite


def send_vectors(call: Call, model: str, entries: Sequence[VectorEntry], encoding: Encoding, usage: Usage) -> Stream:
    """Return a JSON object with the list `entries`, piece by piece."""
    size = sum(entry.vector.size + CALL_WORK for entry in entries)

    async def encoded() -> AsyncGenerator[bytes, None]:
        pieces = _pieces(model, entries, encoding, usage)
        while piece := await work(call, size, partial(_first_bytes, pieces)):
            yield piece

    return Stream(encoded(), content_type=JSON_TEXT, usage=usage)


def _first_bytes(pieces: Iterator[bytes]) -> bytes:
    """Return the next pieces together, at least `_SENT_BYTES` unless they end."""
    data = bytearray()
    while len(data) < _SENT_BYTES and (piece := next(pieces, b"")):
        data += piece
    return bytes(data)


def _pieces(model: str, entries: Sequence[VectorEntry], encoding: Encoding, usage: Usage) -> Iterator[bytes]:
    yield (
        to_json({"id": f"embd-{uuid.uuid4().hex}", "object": "list", "model": model}).removesuffix(b"}") + b',"data":['
    )
    for number, entry in enumerate(entries):
        fields, name = to_json(entry.fields).removesuffix(b"}"), to_json(entry.name)
        yield b"%b%b,%b:" % (b"," if number else b"", fields, name)
        yield from _base64(entry.vector) if encoding == "base64" else _numbers(entry.vector)
        yield b"}"
    yield b'],"usage":%b}' % to_json(usage)


def _base64(vector: F32) -> Iterator[bytes]:
    yield b'"%b"' % base64.b64encode(vector.astype("<f4").data)


def _numbers(vector: F32) -> Iterator[bytes]:
    """Yield a JSON list of the numbers of `vector`, as text in pieces.

    Nine digits are enough to distinguish any two f32.
    """
    yield b"["
    for start in range(0, len(vector), _NUMBERS_A_PIECE):
        piece = vector[start : start + _NUMBERS_A_PIECE].tolist()
        yield (("," if start else "") + ",".join([f"{number:.9g}" for number in piece])).encode()
    yield b"]"


@dataclass(frozen=True, slots=True)
class FoundVectors:
    """The vectors for one embeddings request, in the order of its inputs, with the token counts of all that was run."""

    model: str
    embeddings: Sequence[Embedding]
    sizes: Sequence[int]  # how many embeddings each input has
    costs: Sequence[Cost]  # of all that was run

    @property
    def num_numbers(self) -> int:
        """The length of all vectors together."""
        return sum(one.vector.size for one in self.embeddings)

    def by_input(self) -> list[list[list[float]]]:
        """Return the vectors of each input, as lists of numbers."""
        vectors = iter(self.embeddings)
        return [[next(vectors).vector.tolist() for _ in range(size)] for size in self.sizes]


ROUTES = RouteTable()


@ROUTES.post("/v1/embeddings", answer=EmbeddingList)
async def answer_vectors(call: Call, body: EmbeddingsRequest) -> Stream:
    """Vectors of texts or tokens."""
    return await send_found(call, body, "embedding", "embedding")


async def send_found(call: Call, body: EmbeddingsRequest, kind: str, name: str) -> Stream:
    """Run the inputs of `body` and return their vectors, in entries of a `kind` with numbers in a field `name`."""
    found = await find_vectors(call, body)
    entries = [
        VectorEntry({"object": kind, "index": index}, name, embedding.vector)
        for index, embedding in enumerate(found.embeddings)
    ]
    return send_vectors(call, found.model, entries, body.encoding_format, usage_of(found.costs))


async def find_vectors(call: Call, body: EmbeddingsRequest, *, each: bool = False) -> FoundVectors:
    """Run the inputs of an embeddings request; return vectors made from the state after the last token of each.

    With `each` there is a vector for the state after every token. Raises InvalidRequestError, also for more inputs,
    tokens or numbers than the limits allow.
    """
    engine = call.engine
    shape = engine.info.shape
    settings = body.settings_for(shape)
    settings.check(shape)
    numbers_each = settings.dimensions or settings.size(shape)
    inputs = await tokens_of_inputs(call, engine, "input", body.input, numbers_each)
    sizes = [len(tokens) if each else 1 for tokens in inputs]
    if each:
        inputs = _beginnings(call.limits, inputs, numbers_each)
    initial_state = (await resolve_state(engine, body.state)).initial_state
    costs: list[Cost] = []
    centre = None
    if body.center_on:
        others = await tokens_of_inputs(call, engine, "center_on", body.center_on, settings.size(shape))
        centre, costs = await find_centre(engine, others, settings, initial_state=initial_state)
    begun = centre is not None
    found = await embed(engine, inputs, settings, initial_state=initial_state, centre=centre, wait_for_room=begun)
    return FoundVectors(engine.info.model, found, sizes, [*costs, *(embedding.cost for embedding in found)])


def _beginnings(limits: Limits, inputs: Sequence[Sequence[int]], numbers_each: int) -> list[Sequence[int]]:
    """Return all prefixes of each input's tokens, shortest first. Raises InvalidRequestError if `limits` are exceeded.

    `numbers_each` is the length of one vector.
    """
    count = sum(map(len, inputs))
    limits.check("max_inputs", "input", count)
    limits.check("max_vector_numbers", "input", count * numbers_each)
    limits.check("max_prompt_tokens", "input", sum(len(tokens) * (len(tokens) + 1) // 2 for tokens in inputs))
    return [tokens[:end] for tokens in inputs for end in range(1, len(tokens) + 1)]


async def tokens_of_inputs(
    call: Call, engine: EngineLike, field: str, prompts: Sequence[AnyPrompt], numbers_each: int
) -> list[Sequence[int]]:
    """Return the token ids of each of `prompts`. Raises InvalidRequestError for `field` if the limits are exceeded.

    `numbers_each` is the length of one vector; all vectors of one answer together have a limit, too.
    """
    limits = call.limits
    fitting = max(limits.max_vector_numbers // numbers_each, 1)
    if len(prompts) > fitting:
        allowed = f"at most {fitting} inputs of {numbers_each} numbers each (max_vector_numbers)"
        raise InvalidRequestError(field, len(prompts), allowed)

    def tokenize() -> list[Sequence[int]]:
        return [_tokens(engine, f"{field}.{number}", prompt) for number, prompt in enumerate(prompts)]

    inputs = await work(call, sum(map(len, prompts)) + CALL_WORK * len(prompts), tokenize)
    limits.check("max_prompt_tokens", field, sum(map(len, inputs)))
    return inputs


def _tokens(engine: EngineLike, field: str, prompt: AnyPrompt) -> Sequence[int]:
    tokens = tokens_of(engine, prompt)
    if not tokens:
        raise InvalidRequestError(field, prompt if isinstance(prompt, str) else [], "at least one token")
    check_token_ids(f"{field} token", tokens, engine.info.shape.vocab_size)
    return tokens
