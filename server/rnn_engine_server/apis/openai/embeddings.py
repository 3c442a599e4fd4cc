"""OpenAI's embeddings: the vectors of texts."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Generic, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, check_token_ids
from rnn_engine.interface import EngineLike
from rnn_engine.operations.embedding import Embedding, EmbeddingSettings, Layers, Pooling, embed
from rnn_engine.operations.parallel import Cost
from rnn_engine.types import F32, EmbeddingTask, ModelShape
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import INPUTS, PROMPT_FORMS, AnyPrompt, parse_prompts, tokens_of
from rnn_engine_server.apis.common.messages import TEXT_PART, parse_content
from rnn_engine_server.apis.common.states import ModelBody, resolve_state
from rnn_engine_server.core.call import CALL_WORK, Call, work
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.schema import INTEGER, INTEGERS, Parsed, RefusedError, Schema, Usage, is_integers

Encoding: TypeAlias = Literal["float", "base64"]

_DEFAULT = EmbeddingSettings()
_NUMBER_BYTES = 16  # of a vector in memory, with its text in the answer


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
    tuple[AnyPrompt, ...], Parsed(_parse_inputs, *PROMPT_FORMS, _PARTS, {"type": "array", "items": _PARTS}), INPUTS
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

    def settings_for(self, shape: ModelShape) -> EmbeddingSettings:
        """Return the settings for a model of this `shape`; the defaults of a dialect are only for vectors of states."""
        settings = EmbeddingSettings(dimensions=self.dimensions, normalize=self.normalize, task=self.task)
        if shape.has_head or not self.model_fields_set.isdisjoint(("layer", "part", "pooling")):
            settings = replace(settings, layer=self.layer, part=self.part, pooling=self.pooling)
        return settings


Entry = TypeVar("Entry")


class EmbeddingEntry(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class VectorsOf(TypedDict, Generic[Entry]):
    """The answer with vectors: one entry for each input, in the order of the inputs."""

    id: str
    object: Literal["list"]
    model: str
    data: list[Entry]
    usage: Usage


EmbeddingList: TypeAlias = VectorsOf[EmbeddingEntry]
Vectors: TypeAlias = Long[Mapping[str, object]]
"""An answer with vectors, which are arrays until they are encoded."""


def list_vectors(
    call: Call,
    fields: Sequence[Mapping[str, object]],
    name: str,
    vectors: Sequence[F32],
    encoding: Encoding,
    usage: Usage,
) -> Vectors:
    """Return the answer with a list of `vectors` [any], each in a field called `name` beside other `fields`."""

    def make() -> Mapping[str, object]:
        entries = [
            {**each, name: vector if encoding == "float" else base64.b64encode(vector.astype("<f4").data).decode()}
            for each, vector in zip(fields, vectors, strict=True)
        ]
        told = {"id": f"embd-{uuid.uuid4().hex}", "object": "list", "model": call.engine.info.model}
        return {**told, "data": entries, "usage": usage}

    return Long(sum(vector.size + CALL_WORK for vector in vectors), make)


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
async def answer_vectors(call: Call, body: EmbeddingsRequest) -> Vectors:
    """Vectors of texts or tokens."""
    return await list_found(call, body, "embedding", "embedding")


async def list_found(call: Call, body: EmbeddingsRequest, kind: str, name: str) -> Vectors:
    """Run the inputs of `body` and return their vectors, in entries of a `kind` with numbers in a field `name`."""
    found = await find_vectors(call, body)
    fields = [{"object": kind, "index": index} for index in range(len(found.embeddings))]
    vectors = [embedding.vector for embedding in found.embeddings]
    return list_vectors(call, fields, name, vectors, body.encoding_format, usage_of(found.costs))


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
    inputs = await tokens_of_inputs(call, "input", body.input, numbers_each)
    sizes = [len(tokens) if each else 1 for tokens in inputs]
    if each:
        inputs = _beginnings(call, inputs, numbers_each)
    initial_state = (await resolve_state(engine, body.state)).initial_state
    found = await embed(engine, inputs, settings, initial_state=initial_state)
    return FoundVectors(engine.info.model, found, sizes, [embedding.cost for embedding in found])


def _beginnings(call: Call, inputs: Sequence[Sequence[int]], numbers_each: int) -> list[Sequence[int]]:
    """Return all prefixes of each input's tokens, shortest first. Raises InvalidRequestError if limits are exceeded.

    `numbers_each` is the length of one vector.
    """
    count, limits = sum(map(len, inputs)), call.limits
    limits.check("max_inputs", "input", count)
    limits.check("max_vector_numbers", "input", count * numbers_each)
    limits.check("max_prompt_tokens", "input", sum(len(tokens) * (len(tokens) + 1) // 2 for tokens in inputs))
    call.hold_more("the vectors", _NUMBER_BYTES * count * numbers_each)
    return [tokens[:end] for tokens in inputs for end in range(1, len(tokens) + 1)]


async def tokens_of_inputs(
    call: Call, field: str, prompts: Sequence[AnyPrompt], numbers_each: int
) -> list[Sequence[int]]:
    """Return the token ids of each of `prompts`. Raises InvalidRequestError for `field` if the limits are exceeded.

    `numbers_each` is the length of one vector; all vectors of one answer together have a limit, too. They are counted
    as memory of the call: raises OverloadedError and RefusalError.
    """
    engine, limits = call.engine, call.limits
    fitting = max(limits.max_vector_numbers // numbers_each, 1)
    if len(prompts) > fitting:
        allowed = f"at most {fitting} inputs of {numbers_each} numbers each (max_vector_numbers)"
        raise InvalidRequestError(field, len(prompts), allowed)

    def tokenize() -> list[Sequence[int]]:
        return [_tokens(engine, f"{field}.{number}", prompt) for number, prompt in enumerate(prompts)]

    inputs = await work(call, sum(map(len, prompts)) + CALL_WORK * len(prompts), tokenize)
    limits.check("max_prompt_tokens", field, sum(map(len, inputs)))
    call.hold_more("the vectors", _NUMBER_BYTES * len(inputs) * numbers_each)
    return inputs


def _tokens(engine: EngineLike, field: str, prompt: AnyPrompt) -> Sequence[int]:
    tokens = tokens_of(engine, prompt)
    if not tokens:
        raise InvalidRequestError(field, prompt if isinstance(prompt, str) else [], "at least one token")
    check_token_ids(f"{field} token", tokens, engine.info.shape.vocab_size)
    return tokens
