"""Score how well documents answer queries: by a reranker, or by asking the model.

A reranker reads the state of its embedding model after a document and a query. Any other model that follows a chat is
asked if the document answers the query, and the probabilities of the answers Yes and No are compared. None is trained
for that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.chat_prompt import make_chat_prompt, token_positions
from rnn_engine.operations.embedding import InputState, end_of_sentence, end_states
from rnn_engine.operations.parallel import Cost
from rnn_engine.operations.scoring import Context, score_after, shared_cost
from rnn_engine.requests import GenerateRequest
from rnn_engine.types import InitialState

Method: TypeAlias = Literal["reranker", "yes_no"]
"""How relevance is found: by a model that reads the state after a pair, or by the probabilities of Yes and No."""

_YES, _NO = "Yes", "No"
_EXAMPLES = (
    ("How many legs does a spider have?", "Spiders are not insects. They have eight legs, and no wings.", _YES),
    ("When does the museum open?", "The museum was built by a rich merchant, who gave it to the city.", _NO),
)
_ASKS = "\nQuery:"  # between the document and the query, if the document comes first
_MOST_ADDED = 1 << 16  # characters that a template may add to a conversation


_INSTRUCTION = "Instruct: Given a query, retrieve documents that answer the query\n"  # as rerankers were trained


@dataclass(frozen=True, slots=True)
class Relevance:
    """How likely it is, to the model, that a document answers a query."""

    log_odds: float  # ln P(Yes) - ln P(No), or what a reranker gives
    cost: Cost  # of the prompt and, if the model was asked, both answers

    @property
    def score(self) -> float:
        """The probability that the document answers the query, P(Yes) / (P(Yes) + P(No)): the sigmoid of `log_odds`."""
        smaller = math.exp(-abs(self.log_odds))
        return (1.0 if self.log_odds >= 0 else smaller) / (1.0 + smaller)


@dataclass(frozen=True, slots=True)
class RelevancePrompt:
    """The tokens that ask how well one document answers one query."""

    tokens: Sequence[int]
    text: str
    num_shared: int  # the first tokens, which all prompts share
    num_document: int | None = None  # the first tokens, which all prompts about the document share; None: only others

    @property
    def checkpoint_positions(self) -> list[int]:
        """The numbers of first tokens after which the state is worth keeping, since other prompts begin with them."""
        return [self.num_shared, *([] if self.num_document is None else [self.num_document])]


def method(engine: EngineLike) -> Method:
    """Return how relevance is found. Raises InvalidRequestError for an embedding model without a reranker."""
    info = engine.info
    if info.embedding is None:
        return "yes_no"
    if info.embedding.reranker is None:
        message = (
            f"the model {info.model} was made for vectors and has no reranker; its operator can load it with one, by "
            "--reranker or by reranker_path of /admin/models/load"
        )
        raise InvalidRequestError("model", info.model, "a model with a reranker, or a language model", message)
    return "reranker"


def document_tokens(engine: EngineLike, document: str) -> Sequence[int]:
    """Return the tokens with which every prompt about `document` begins if the document comes first."""
    [prompt] = relevance_prompts(engine, [("", document)], document_first=True)
    return prompt.tokens[: prompt.num_document]


def relevance_prompts(
    engine: EngineLike, pairs: Iterable[tuple[str, str]], *, before: str = "", document_first: bool = False
) -> tuple[RelevancePrompt, ...]:
    """Return the prompt that asks for each pair of a query and a document if the document answers the query.

    All prompts begin with the same examples. Those of one query go on with that query, so that the cache has the state
    after it. With `document_first`, those of one document go on with that document, as `document_tokens` does. The
    query is asked again at the end, since a state keeps best what it read last. `before` is a text that separates the
    prompts from what the initial state has taken in.

    The prompts of a reranker always have the document first.
    """
    if method(engine) == "reranker":
        return tuple(_reranker_prompt(engine, query, document, before) for query, document in pairs)
    return tuple(_prompt(engine, query, document, before, document_first=document_first) for query, document in pairs)


def num_prompt_tokens(prompts: Sequence[RelevancePrompt]) -> int:
    """Return the number of tokens of `prompts`, without the examples that all of them begin with."""
    return sum(len(prompt.tokens) - prompt.num_shared for prompt in prompts)


async def score_relevance(
    engine: EngineLike, prompts: Sequence[RelevancePrompt], *, initial_state: InitialState | None = None
) -> tuple[Relevance, ...]:
    """Return the relevance for each of `prompts`, which `relevance_prompts` made.

    Raises OverloadedError if the queue is full, before anything runs.
    """
    if method(engine) == "reranker":
        return await _read_states(engine, prompts, initial_state)
    # An answer begins with a space unless the template ends with white space.
    space = "" if prompts[0].text[-1:].isspace() else " "
    answers = [engine.tokenize(space + answer) for answer in (_YES, _NO)]
    contexts = [Context(prompt.tokens, initial_state, prompt.checkpoint_positions) for prompt in prompts]
    found = await score_after(engine, contexts, answers)
    compare = (Relevance(yes.total - no.total, shared_cost([yes, no])) for yes, no in found)
    return await asyncio.to_thread(tuple, compare)


async def _read_states(
    engine: EngineLike, prompts: Sequence[RelevancePrompt], initial_state: InitialState | None
) -> tuple[Relevance, ...]:
    """Return the relevance by a reranker, which reads the states after the prompts as they come, some at a time."""
    calls = [
        GenerateRequest(
            prompt.tokens,
            initial_state=initial_state,
            checkpoint_positions=prompt.checkpoint_positions,
            max_tokens=0,
            keep_end=True,
        )
        for prompt in prompts
    ]
    size = engine.info.num_slots
    found: dict[int, Relevance] = {}
    unread: dict[int, InputState] = {}
    async with aclosing(end_states(engine, calls)) as ends:
        async for number, end in ends:
            unread[number] = end
            if len(unread) == size or len(unread) + len(found) == len(calls):
                scores = await engine.score_states([each.state for each in unread.values()])
                for (read, each), score in zip(unread.items(), scores.tolist(), strict=True):
                    found[read] = Relevance(score, each.cost)
                unread.clear()
    return tuple(found[number] for number in range(len(calls)))


def _reranker_prompt(engine: EngineLike, query: str, document: str, before: str) -> RelevancePrompt:
    read, asked = f"{_INSTRUCTION}Document: {document}\n", f"Query: {query}"
    earlier = engine.tokenize(before)
    begins = [*earlier, *engine.tokenize(read)]
    tokens = [*begins, *engine.tokenize(asked), end_of_sentence(engine.info.shape)]
    num_document = len(begins) + len(engine.tokenize("Query:"))
    return RelevancePrompt(tokens, f"{before}{read}{asked}", len(earlier), num_document)


def _question(query: str, document: str, *, document_first: bool) -> ChatMessage:
    given = [f"Query: {query}", f"Document: {document}"]
    first, second = reversed(given) if document_first else given
    asked = f"{first}\n{second}\nDoes the document answer the query: {query}\nAnswer Yes or No."
    return ChatMessage(Role.USER, asked)


def _prompt(engine: EngineLike, query: str, document: str, before: str, *, document_first: bool) -> RelevancePrompt:
    examples = [
        message
        for example_query, example_document, answer in _EXAMPLES
        for message in (
            _question(example_query, example_document, document_first=document_first),
            ChatMessage(Role.ASSISTANT, answer),
        )
    ]
    messages = [*examples, _question(query, document, document_first=document_first)]
    conversation = Conversation(messages, thinking=False)
    template = engine.info.chat_template
    most = 2 * conversation.characters + _MOST_ADDED
    prompt = make_chat_prompt(engine, template, conversation, most, before=before)
    num_document = None
    if document_first:
        behind = 1 + 2 * query.count(_ASKS)  # the document: the question has the query twice
        begins = before + prompt.text.rsplit(_ASKS, behind)[0] + _ASKS
        sizes = {token: len(text.encode()) for text, token in engine.info.special_tokens.items()}
        [num_document] = token_positions(engine, prompt.tokens, [len(begins.encode())], sizes)
    return RelevancePrompt(prompt.tokens, prompt.text, prompt.turns.get(len(examples), 0), num_document)
