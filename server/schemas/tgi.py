"""The bodies of text-generation-inference's routes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.base import RefusedError, only
from server.schemas.completions import CompletionRequest

_MAKES_RANDOM = ("temperature", "top_k", "top_p", "typical_p")
_ALL_TOKENS = {"top_k": 0, "top_p": 1.0}  # what is kept where a request draws and does not say


class TgiRequest(CompletionRequest):
    """A text to continue, in text-generation-inference's words. The fields stand in `parameters`, or beside `inputs`;
    those of completions mean the same here. Without `do_sample`, `temperature`, `top_k`, `top_p` and `typical_p` the
    likeliest tokens are taken; with one of them, all tokens may be drawn unless `top_k` or `top_p` says otherwise."""

    aliases: ClassVar = {
        **CompletionRequest.aliases,
        "inputs": "prompt",
        "max_new_tokens": "max_tokens",
        "return_full_text": "echo",
        "top_n_tokens": "logprobs",
    }

    unfolded: ClassVar = {
        "parameters": {"type": ["object", "null"], "description": "All other fields, but `stream`, may stand here."},
        "do_sample": {"type": ["boolean", "null"], "description": "Draw, instead of taking the likeliest tokens."},
    }

    max_tokens: int = Field(default=100, ge=1, description="The most tokens to generate.")
    details: bool = Field(default=False, description="Tell the tokens, their log-probabilities and how it ended.")
    decoder_input_details: bool = Field(
        default=False, description="Tell the log-probabilities of the prompt's tokens, too. Not with a stream."
    )
    truncate: int | None = Field(default=None, ge=1, description="Use only this many of the prompt's last tokens.")
    watermark: Annotated[Literal[False], only(False, because="answers have no watermark")] = Field(
        default=False, description="Only false."
    )
    adapter_id: Annotated[None, only(None, because="LoRAs are merged when the model is loaded")] = Field(
        default=None, description="Only null."
    )

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        parameters = fields.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise RefusedError(parameters, "an object or null", below="parameters")
        unfolded = {name: value for name, value in fields.items() if name != "parameters"} | parameters
        draws = unfolded.pop("do_sample", None) or any(unfolded.get(name) is not None for name in _MAKES_RANDOM)
        if not draws:
            unfolded["temperature"] = 0
        for name, value in _ALL_TOKENS.items():
            if unfolded.get(name) is None:
                unfolded[name] = value
        return unfolded

    @property
    def alternatives(self) -> int | None:
        told = self.details or self.decoder_input_details or self.stream
        return (self.logprobs or 0) if told or self.copies > self.n else None

    @property
    def scores_prompt(self) -> bool:
        return self.decoder_input_details


class PrefillToken(TypedDict):
    """`logprob` is null for the first token of a prompt."""

    id: int
    text: str
    logprob: float | None


class TgiToken(TypedDict):
    """`special` is true for the token that ends a text."""

    id: int
    text: str
    logprob: float | None
    special: bool


FinishWord: TypeAlias = Literal["length", "eos_token", "stop_sequence"]


class TgiDetails(TypedDict):
    """The tokens of an answer, and how it ended."""

    finish_reason: FinishWord
    generated_tokens: int
    seed: int
    prefill: list[PrefillToken]
    tokens: list[TgiToken]
    top_tokens: NotRequired[list[list[TgiToken]]]


class TgiSequence(TgiDetails):
    """Another of `best_of` answers."""

    generated_text: str


class TgiBestDetails(TgiDetails):
    """Those of the best of several answers."""

    best_of_sequences: list[TgiSequence]


class TgiAnswer(TypedDict):
    """A stop string that ends the text is part of it. `details` is there where it was asked for."""

    generated_text: str
    details: NotRequired[TgiDetails | TgiBestDetails]


class TgiStreamDetails(TypedDict):
    finish_reason: FinishWord
    generated_tokens: int
    seed: int
    input_length: int


class TgiEvent(TypedDict):
    """One token; the last has the whole text and how it ended."""

    index: int
    token: TgiToken
    top_tokens: NotRequired[list[TgiToken]]
    generated_text: str | None
    details: TgiStreamDetails | None


class TgiInfo(TypedDict):
    """What is served, and how much one may ask for."""

    model_id: str
    model_sha: None
    model_dtype: str
    model_device_type: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_length: int
    max_input_tokens: int
    max_total_tokens: int
    max_batch_size: int
    version: str
    router: str
    sha: None
    docker_label: None


ErrorType: TypeAlias = Literal["validation", "overloaded", "generation", "healthcheck"]


class TgiError(TypedDict):
    error: str
    error_type: ErrorType
