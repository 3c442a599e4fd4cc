"""ai00's own routes for states after texts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.interface import EngineLike
from rnn_engine.operations.embedding import Layers, run_states
from rnn_engine.operations.parallel import Cost
from rnn_engine.types import F32
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import INPUTS, PROMPT_FORMS, AnyPrompt, parse_joined
from rnn_engine_server.apis.common.states import ModelBody, resolve_state
from rnn_engine_server.apis.openai.embeddings import (
    LAYER_FORMS,
    EmbeddingList,
    EmbeddingsRequest,
    Encoding,
    Vectors,
    VectorsOf,
    answer_vectors,
    list_vectors,
    parse_layer,
    tokens_of_inputs,
)
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.handlers import Answer, RouteTable
from rnn_engine_server.core.schema import NULL, ErrorBody, Parsed
from rnn_engine_states.files.prefab import prefab_dims, rows_from_state

_Inputs: TypeAlias = Annotated[tuple[AnyPrompt, ...], Parsed(parse_joined, *PROMPT_FORMS, NULL), INPUTS]
_INPUT = (
    "A text or token ids. The texts of a list are joined to one; a list of lists of token ids has an entry for "
    "each. An empty input stands for the token that ends a text."
)


class StatesRequest(ModelBody):
    """A request to run texts. The answer has the whole state of the model after each of them."""

    ignored: ClassVar = frozenset({"metadata", "user"})

    input: _Inputs = Field(default=("",), description=_INPUT)
    encoding_format: Encoding = Field(
        default="float", description="Numbers, or their bytes (f32, little-endian) as base64."
    )


def _parse_layer(value: object) -> Layers | None:
    return None if value is None else parse_layer(value)


class Ai00EmbeddingsRequest(EmbeddingsRequest):
    """A request to run texts. The answer has one row of the model's state after each of them.

    The fields of embeddings mean the same here; some have ai00's defaults.
    """

    aliases: ClassVar = {"embed_layer": "layer"}
    keeps_null: ClassVar = frozenset({"layer"})

    input: _Inputs = Field(default=("",), description=_INPUT)
    layer: Annotated[Layers | None, Parsed(_parse_layer, *LAYER_FORMS, NULL)] = Field(  # type: ignore[assignment]
        default=0,
        description="The number of a layer, counted from the end if negative; a list of numbers, whose vectors are "
        "joined; `all`, joined; or their `mean`. Null is the whole state, as in `/api/oai/states`.",
    )
    part: str | None = Field(default="att_shift", description="A field of the state, as for `/v1/embeddings`.")
    normalize: bool = Field(default=False, description="Scale every vector to length 1.")


class WholeState(TypedDict):
    """The model's state after one input, as an array of numbers.

    `shape` lists four lengths, the fastest axis first: the width, the head size + 2, the number of layers and 1.
    """

    object: Literal["states"]
    index: int
    shape: list[int]
    data: list[float] | str


StateList: TypeAlias = VectorsOf[WholeState]


ROUTES = RouteTable()


@ROUTES.post("/api/oai/states", answer=StateList)
async def states(call: Call, body: StatesRequest) -> Vectors:
    """The whole states after texts or tokens, in ai00's order."""
    dims = prefab_dims(call.engine.info.shape)
    return await _answer_whole(call, body, {"object": "states", "shape": dims}, "data")


@ROUTES.post("/api/oai/embeddings", answer=EmbeddingList)
async def embeddings(call: Call, body: Ai00EmbeddingsRequest) -> Vectors:
    """A row of the states after texts or tokens, as ai00 returned it: by default the token shift of a layer."""
    if body.layer is None:
        return await _answer_whole(call, body, {"object": "embedding"}, "embedding")
    begun = _begun(call.engine, body.input)
    return await answer_vectors(call, body.model_copy(update={"input": tuple(begun)}))


def _begun(engine: EngineLike, inputs: Sequence[AnyPrompt]) -> list[AnyPrompt]:
    return [(engine.info.end_of_text,) if prompt == "" else prompt for prompt in inputs]


async def _answer_whole(
    call: Call, body: StatesRequest | Ai00EmbeddingsRequest, fields: Mapping[str, object], name: str
) -> Vectors:
    """Run the inputs of `body` and answer with the whole state of the model after each one.

    Each entry has the given `fields`, the index of its input, and the numbers of the state in the field `name`.
    """
    engine, shape = call.engine, call.engine.info.shape
    begun = _begun(engine, body.input)
    inputs = await tokens_of_inputs(call, "input", begun, math.prod(prefab_dims(shape)))
    initial_state = (await resolve_state(engine, body.state)).initial_state
    states: dict[int, F32] = {}
    costs: list[Cost] = []
    async with aclosing(run_states(engine, inputs, initial_state=initial_state)) as ends:
        async for index, end in ends:
            states[index] = await asyncio.to_thread(rows_from_state, end.state, shape)
            costs.append(end.cost)
    told = [{**fields, "index": index} for index in range(len(inputs))]
    vectors = [states[index] for index in range(len(inputs))]
    return list_vectors(call, told, name, vectors, body.encoding_format, usage_of(costs))


@ROUTES.post("/api/oai/embeds", answer=ErrorBody, uses_model=False)
async def refuse(_call: Call) -> Answer:
    """Refused with 501: this server has no embedding model beside the RWKV model."""
    raise RefusalError(
        501, "this server has no embedding model beside the RWKV model; /v1/embeddings makes vectors with that one"
    )
