"""The answers of Ollama's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from server.schemas.error import ErrorDetail
from server.schemas.state_entry import StateEntry


class OllamaCalledFunction(TypedDict):
    name: str
    arguments: Mapping[str, Any]


class OllamaAnsweredCall(TypedDict):
    """A call that the client is asked to make. `arguments` are empty where the answer was cut."""

    id: str
    function: OllamaCalledFunction


class OllamaAssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaAnsweredCall]]


class OllamaEnd(TypedDict):
    """What every line of an answer has, and the last one: counts of tokens, and nanoseconds where times are taken."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    saved_state: NotRequired[StateEntry | None]
    save_error: NotRequired[ErrorDetail]


class OllamaChat(OllamaEnd):
    """The answer, and with `stream` each line of it."""

    message: OllamaAssistantMessage


class OllamaText(OllamaEnd):
    """The answer, and with `stream` each line of it."""

    response: str
    thinking: NotRequired[str]


class OllamaError(TypedDict):
    """What every answer of Ollama's routes that is not a success holds, and the last line of a stream that fails."""

    error: str


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """A model; `size` is what it takes on the device, in bytes, 0 where that is not known."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    size_vram: NotRequired[int]
    expires_at: NotRequired[str]


class OllamaModels(TypedDict):
    models: list[OllamaModel]


class OllamaModelFacts(TypedDict):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: Mapping[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(TypedDict):
    """The version of Ollama whose API this is."""

    version: str
