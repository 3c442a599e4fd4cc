"""How well documents answer queries: the fields that requests for it share, and the function that finds it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.interface import EngineLike
from rnn_engine.operations.chat_prompt import text_before_chat
from rnn_engine.operations.relevance import (
    Relevance,
    RelevancePrompt,
    num_prompt_tokens,
    relevance_prompts,
    score_relevance,
)
from rnn_engine_server.apis.common.states import ModelBody, resolve_state
from rnn_engine_server.core.call import CALL_WORK, SHORT_WORK, Call, work


class RelevanceBody(ModelBody):
    """The fields of a request for the relevance of documents. Subclasses add the texts."""

    max_tokens_per_doc: int | None = Field(
        default=None, ge=1, description="Read only this many of a document's first tokens. Null: all."
    )


async def find_relevance(
    call: Call, engine: EngineLike, body: RelevanceBody, field: str, pairs: Sequence[tuple[str, str]]
) -> tuple[Relevance, ...]:
    """Return the relevance for each pair of a query and a document.

    Raises InvalidRequestError for `field` if the prompts have more tokens than the limits allow.
    """
    limits, start = call.limits, await resolve_state(engine, body.state)

    def make() -> Sequence[RelevancePrompt]:
        before, read = text_before_chat(engine, start.frozen, engine.info.chat_template), pairs
        if (most := body.max_tokens_per_doc) is not None:
            read = [(query, _beginning(engine, document, most)) for query, document in pairs]
        prompts = relevance_prompts(engine, read, before=before)
        limits.check("max_prompt_tokens", field, num_prompt_tokens(prompts))
        return prompts

    size = sum(len(query) + len(document) + CALL_WORK for query, document in pairs)
    if not isinstance(engine.info.chat_template, WorldTemplate):
        size += SHORT_WORK  # a template that is a program may take long even for short texts
    prompts = await work(call, size, make)
    return await score_relevance(engine, prompts, initial_state=start.initial_state)


def _beginning(engine: EngineLike, text: str, num_tokens: int) -> str:
    """Return the text of the first tokens of `text`, without a character that is cut in two."""
    return engine.detokenize(engine.tokenize(text)[:num_tokens]).decode(errors="ignore")
