"""The bodies of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from server.limits import Limits
from server.schemas.base import only
from server.schemas.error import ErrorDetail
from server.schemas.generation import ProgressBody
from server.schemas.prompt import Prompts, check_prompts
from server.schemas.state_entry import StateEntry
from server.schemas.timings import PromptProgress, Timings
from server.schemas.usage import Usage


class CompletionRequest(ProgressBody):
    """A text or tokens to continue."""

    ignored: ClassVar = ProgressBody.ignored | {"add_special_tokens", "request_id"}

    prompt: Prompts = Field(
        description="What to continue. A list of prompts makes a list of choices, prompt by prompt."
    )
    echo: bool = Field(default=False, description="Begin the answer with the prompt.")
    logprobs: int | None = Field(
        default=None,
        description="Log-probabilities of the tokens (with `echo` of the prompt's, too) and of this many others.",
    )
    return_token_ids: bool = Field(default=False, description="Add `prompt_token_ids` and `token_ids` to the choices.")
    grammar_prefix_tokens: int = Field(
        default=0,
        ge=0,
        description="With how many tokens of the prompt's end the text begins that a grammar or schema describes: the "
        "answer goes on from there.",
    )
    best_of: int | None = Field(
        default=None,
        ge=1,
        le=128,
        description="Make this many answers to a prompt, at least `n`, and return the `n` with the greatest mean "
        "log-probability a token, best first. Not with `stream` where it is more than `n`.",
    )
    marks: Annotated[list[int], FailFast()] = Field(
        default=[], max_length=8, description="Positions in the prompt, in tokens, whose states are kept before others."
    )
    suffix: Annotated[Literal[""] | None, only(None, "", because="the model can't fill in text before an end")] = Field(
        default=None, description='Only null or "".'
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.best_of is not None and self.best_of < self.n:
            raise InvalidRequestError("best_of", self.best_of, f"at least n, which is {self.n}")
        if self.stream and self.copies > self.n:
            raise InvalidRequestError(
                "best_of", self.best_of, f"null or n ({self.n}) with stream, since the best is known at the end alone"
            )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "prompt", self.prompt)
        if self.weighted is not None and self.scores_prompt:
            raise InvalidRequestError("logprobs", self.logprobs, "null with echo, where `state` is a list")

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's tokens are told with their log-probabilities."""
        return self.echo and self.logprobs is not None

    @property
    def num_prompts(self) -> int:
        return len(self.prompt)

    @property
    def alternatives(self) -> int | None:
        is_ranked = self.copies > self.n  # the answers are compared by what the model gives to their tokens
        return 0 if self.logprobs is None and is_ranked else self.logprobs

    @property
    def copies(self) -> int:
        return self.best_of or self.n


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    seed: NotRequired[int]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Completion(TypedDict):
    """The answer, and with `stream` each event (there `usage` comes only where it is asked for)."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[PromptProgress]
