"""The parameters and the results of the calls of `LLM` and `AsyncLLM`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnn_engine.chat_template import ToolCall
from rnn_engine.llm.state import State
from rnn_engine.operations.relevance import Method
from rnn_engine.operations.scoring import ChoiceScore
from rnn_engine.requests import FinishReason, TokenInfo
from rnn_engine.sampling.params import SamplingParams as TokenSampling


@dataclass(frozen=True, slots=True)
class SamplingParams(TokenSampling):
    """How a text is generated: how each token is drawn, when the text ends, and what is returned with it.

    The fields that decide how a token is drawn are those of the HTTP bodies. Their defaults are ai00's: temperature 1
    and `top_p` 0.5; `temperature=0` is greedy.
    """

    max_tokens: int = 256
    min_tokens: int = 0  # before this many no stop token is drawn, and no stop string counts
    stop: str | Sequence[str] = ()  # texts before which the text ends
    stop_token_ids: Sequence[int] = (0,)  # ids that end it; 0 is the end of a text, whatever its id
    logprobs: int | None = None  # alternatives to return with each token; 0 = only its own; None = no log-probabilities


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What a model generated after one prompt or conversation. `str(completion)` is its text."""

    text: str  # of a chat: without thoughts and calls
    tokens: tuple[int, ...]  # all that were generated, a stop token excepted
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int  # of the prompt's, that did not have to be run
    completion_tokens: int  # all that were drawn
    seed: int  # gives the same text again
    logprobs: tuple[TokenInfo, ...] = ()  # of each token, if `SamplingParams.logprobs` is set
    reasoning: str | None = None  # the thoughts of a chat's answer, if the model has any
    tool_calls: tuple[ToolCall, ...] = ()  # of a chat's answer
    state: State | None = None  # after prompt and text, if `keep_state` was set

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False)
class RankedChoice:
    """A choice that `rank` returns, with its probability, given that exactly one of the choices is the answer."""

    text: str
    index: int  # among the choices as they were given
    probability: float
    score: ChoiceScore  # log-probabilities of the whole and of each token, perplexity


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document that `rerank` returns, with how well it answers the query."""

    text: str
    index: int  # among the documents as they were given
    score: float  # from 0 to 1
    method: Method  # how the score was found: by a reranker, or by the probabilities of Yes and No


class GenerationInterrupted(KeyboardInterrupt):
    """Raised by `LLM.generate` and `LLM.chat` on Ctrl-C; `completions` has what is done, by the prompts' indices."""

    def __init__(self, completions: Mapping[int, Completion]) -> None:
        self.completions = dict(completions)
        super().__init__(f"interrupted; {len(self.completions)} completions are done, see `completions`")
