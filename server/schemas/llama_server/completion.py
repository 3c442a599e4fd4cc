"""The bodies of llama-server's own completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.base import only
from server.schemas.completions import CompletionRequest
from server.schemas.state_entry import StateEntry
from server.schemas.timings import PromptProgress, Timings


class LlamaCompletionRequest(CompletionRequest):
    """A text or tokens to continue, in llama-server's words. Fields that OpenAI has as well mean the same."""

    ignored: ClassVar = CompletionRequest.ignored | {
        "backend_sampling",
        "cache_prompt",
        "grammar_lazy",
        "grammar_triggers",
        "n_cache_reuse",
        "n_discard",
        "n_keep",
        "preserved_tokens",
        "t_max_prompt_ms",
    }
    aliases: ClassVar = {
        **CompletionRequest.aliases,
        "max_completion_tokens": "max_tokens",
        "n_probs": "logprobs",
        "n_cmpl": "n",
    }

    return_tokens: bool = Field(default=False, description="Tell the ids of the tokens; a stream always does.")
    response_fields: list[str] | None = Field(
        default=None,
        description="Only these fields of the answer; `generation_settings/seed` is a field of another, and told "
        "under that name. Null or empty: all.",
    )
    min_keep: Annotated[int, only(0, because="no sampler keeps tokens against its own rule")] = Field(
        default=0, description="Only 0."
    )
    n_indent: Annotated[int, only(0, because="the model knows no lines")] = Field(default=0, description="Only 0.")
    post_sampling_probs: Annotated[
        Literal[False], only(False, because="probabilities are told as the model gives them, before sampling")
    ] = Field(default=False, description="Only false.")
    image_data: Annotated[list[Any], only([], because="the model reads text only")] = Field(
        default=[], description="Only an empty list."
    )
    lora: Annotated[list[Any], only([], because="LoRAs are merged when the model is loaded")] = Field(
        default=[], description="Only an empty list."
    )

    @property
    def alternatives(self) -> int | None:
        return super().alternatives or None  # n_probs of 0 asks for none


class TokenProbability(TypedDict):
    """`bytes` are those of the token's text."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class DrawnProbability(TokenProbability):
    top_logprobs: list[TokenProbability]


class PromptProbability(TypedDict):
    """A token of the prompt. `logprob` is null where nothing precedes it."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | None
    top_logprobs: list[TokenProbability]


class LlamaCompletion(TypedDict):
    """The answer to one prompt; several prompts or answers are a list of these. `tokens_evaluated` counts the prompt's
    tokens, of which `tokens_cached` were known and not run. `stop_type` is `word` for a stop string, `limit` for
    `n_predict`, and `eos` for a stop token or the end of a grammar. `timings` is absent where no times are taken.
    `prompt_probabilities` has the prompt's tokens, where `echo` and `n_probs` ask for them."""

    index: int
    content: str
    tokens: list[int]
    id_slot: Literal[-1]
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: Mapping[str, Any]
    prompt: str
    has_new_line: bool
    truncated: Literal[False]
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: NotRequired[Timings]
    completion_probabilities: NotRequired[list[DrawnProbability]]
    prompt_probabilities: NotRequired[list[PromptProbability]]
    saved_state: NotRequired[StateEntry | None]


class LlamaCompletionChunk(TypedDict):
    """An event of a stream before the last one, which is a LlamaCompletion without text. `prompt_probabilities` come
    in an event of their own, before the text."""

    prompt_progress: NotRequired[PromptProgress]
    timings: NotRequired[Timings]
    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: Literal[-1]
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[DrawnProbability]]
    prompt_probabilities: NotRequired[list[PromptProbability]]
