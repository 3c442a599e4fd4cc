"""Score how well documents answer queries: ask the model, and compare the probabilities of the answers Yes and No.

Any model that follows a chat can do it; none is trained for it. The server uses only `relevance_prompts`,
`num_prompt_tokens` and `score_relevance`, so a model that is trained to rerank could take their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.interface import EngineLike
from rnn_engine.operations.chat_prompt import ChatPrompt, make_chat_prompt
from rnn_engine.operations.parallel import Cost
from rnn_engine.operations.scoring import score_after, shared_cost
from rnn_engine.types import InitialState

_YES, _NO = "Yes", "No"
_EXAMPLES = (
    (
        "How many legs does a spider have?",
        "Spiders are not insects. They have eight legs, and no wings.",
        _YES,
    ),
    (
        "When does the museum open?",
        "The museum was built by a rich merchant, who gave it to the city.",
        _NO,
    ),
)
_MOST_ADDED = 1 << 16  # characters that a template may add to a conversation


@dataclass(frozen=True, slots=True)
class Relevance:
    """How likely it is, to the model, that a document answers a query."""

    log_odds: float  # ln P(Yes) - ln P(No)
    cost: Cost  # of the prompt and both answers

    @property
    def score(self) -> float:
        """P(Yes) / (P(Yes) + P(No)), from 0 to 1."""
        smaller = math.exp(-abs(self.log_odds))
        return (1.0 if self.log_odds >= 0 else smaller) / (1.0 + smaller)


def relevance_prompts(
    engine: EngineLike, pairs: Iterable[tuple[str, str]], *, before: str = ""
) -> tuple[ChatPrompt, ...]:
    """Return the prompt that asks for each pair of a query and a document if the document answers the query.

    All prompts begin with the same examples, and those of one query with that query, so that the cache has the state
    after it. The query is asked again after the document, since a state keeps best what it read last. `before` is a
    text that separates the prompts from what the initial state has taken in.
    """
    examples = [
        message
        for query, document, answer in _EXAMPLES
        for message in (_question(query, document), ChatMessage(Role.ASSISTANT, answer))
    ]
    return tuple(_prompt(engine, [*examples, _question(*pair)], before) for pair in pairs)


def num_prompt_tokens(prompts: Sequence[ChatPrompt]) -> int:
    """Return the number of tokens of `prompts`, without the examples that all of them begin with."""
    return sum(len(prompt.tokens) - _num_example_tokens(prompt) for prompt in prompts)


async def score_relevance(
    engine: EngineLike, prompts: Sequence[ChatPrompt], *, initial_state: InitialState | None = None
) -> tuple[Relevance, ...]:
    """Return the relevance for each of `prompts`, which `relevance_prompts` made.

    Raises OverloadedError if the queue is full, before anything runs.
    """
    # An answer begins with a space unless the template ends with white space.
    space = "" if prompts[0].text[-1:].isspace() else " "
    answers = [engine.tokenize(space + answer) for answer in (_YES, _NO)]
    found = await score_after(
        engine,
        [prompt.tokens for prompt in prompts],
        answers,
        initial_state=initial_state,
        checkpoint_positions=[_num_example_tokens(prompts[0])],
    )
    return tuple(Relevance(yes.total - no.total, shared_cost([yes, no])) for yes, no in found)


def _question(query: str, document: str) -> ChatMessage:
    asked = f"Query: {query}\nDocument: {document}\nDoes the document answer the query: {query}\nAnswer Yes or No."
    return ChatMessage(Role.USER, asked)


def _prompt(engine: EngineLike, messages: Sequence[ChatMessage], before: str) -> ChatPrompt:
    conversation = Conversation(messages, thinking=False)
    template = engine.info.chat_template
    return make_chat_prompt(engine, template, conversation, 2 * conversation.characters + _MOST_ADDED, before=before)


def _num_example_tokens(prompt: ChatPrompt) -> int:
    return prompt.turns.get(2 * len(_EXAMPLES), 0)
