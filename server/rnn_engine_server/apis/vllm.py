"""vLLM's routes for scores of pairs of texts, and for pooled vectors."""

from __future__ import annotations

import time
import uuid
from importlib.metadata import version
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.relevance import Method, method
from rnn_engine.types import EmbeddingTask
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import INPUTS
from rnn_engine_server.apis.common.relevance import RelevanceBody, find_relevance
from rnn_engine_server.apis.openai.embeddings import EmbeddingsRequest, Vectors, VectorsOf, list_found, parse_task
from rnn_engine_server.core.call import CALL_WORK, Call
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.schema import STRING, STRINGS, Parsed, RefusedError, Usage

_POOLING = frozenset({"request_id", "priority", "add_special_tokens"})


def _parse_texts(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise RefusedError(value, "a text or a list of texts, none of them empty")
    return tuple(texts)


Texts: TypeAlias = Annotated[tuple[str, ...], Parsed(_parse_texts, STRING, STRINGS), INPUTS]


class ScoreRequest(RelevanceBody):
    """Pairs of a query and a document to score, as for /v1/rerank: from 0 to 1 by how well the document answers the
    query. One query is scored with each of the documents, several each with one."""

    ignored: ClassVar = frozenset({"metadata", "user", *_POOLING})
    neutral: ClassVar = {"truncate_prompt_tokens": (-1,), "use_activation": (True,)}
    aliases: ClassVar = {
        "data_1": "text_1",
        "data_2": "text_2",
        "documents": "text_2",
        "items": "text_2",
        "queries": "text_1",
    }

    text_1: Texts = Field(description="The query, or a list of queries.")
    text_2: Texts = Field(description="The document, or a list of documents.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if len(self.text_1) not in (1, len(self.text_2)):
            allowed = f"one text, or {len(self.text_2)} as in text_2"
            raise InvalidRequestError("text_1", len(self.text_1), allowed)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        queries = self.text_1 * len(self.text_2) if len(self.text_1) == 1 else self.text_1
        return list(zip(queries, self.text_2, strict=True))


class ScoreEntry(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(TypedDict):
    """The scores: one entry for each pair, in the order of the request. `method` is as for /v1/rerank."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreEntry]
    usage: Usage
    method: Method


class PoolingRequest(EmbeddingsRequest):
    """A request for vectors of texts, in vLLM's words. The fields of /v1/embeddings mean the same here."""

    ignored: ClassVar = _POOLING
    neutral: ClassVar = {"truncate_prompt_tokens": (-1,), "use_activation": (True,)}

    task: Annotated[
        EmbeddingTask | None, BeforeValidator(lambda value: None if value == "embed" else parse_task(value))
    ] = Field(default=None, description='Null or "embed", or a task as for /v1/embeddings.')


class PoolingEntry(TypedDict):
    object: Literal["pooling"]
    index: int
    data: list[float] | str


PoolingList: TypeAlias = VectorsOf[PoolingEntry]


ROUTES = RouteTable()


@ROUTES.post("/score", "/v1/score")
async def score(call: Call, body: ScoreRequest) -> Long[ScoreList]:
    """Score how well documents answer queries, in vLLM's form."""
    engine = call.engine
    found = await find_relevance(call, engine, body, "text_2", body.pairs)
    return Long(
        CALL_WORK * len(found),
        lambda: {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": engine.info.model,
            "data": [{"index": index, "object": "score", "score": each.score} for index, each in enumerate(found)],
            "usage": usage_of([each.cost for each in found]),
            "method": method(engine),
        },
    )


class ServerVersion(TypedDict):
    """The version of this server."""

    version: str


@ROUTES.get("/version", uses_model=False)
async def tell_version(_call: Call) -> ServerVersion:
    """The version of this server."""
    return {"version": version("rnn-engine")}


@ROUTES.post("/pooling", answer=PoolingList)
async def pooling(call: Call, body: PoolingRequest) -> Vectors:
    """Vectors of texts or tokens, in vLLM's form."""
    return await list_found(call, body, "pooling", "data")
