"""`python -m tools.compatibility`: bring docs/compatibility.md up to date.

Prints the fields that the official packages have and systems.yaml does not, as may happen with a package's new version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase
from ollama._types import ChatRequest, EmbedRequest, GenerateRequest
from openai.types import chat, embedding_create_params, responses
from openai.types import completion_create_params as completions

from tools.compatibility.document import DOCUMENT, SYSTEMS, document

_TYPES: Mapping[str, type[object]] = {
    "OpenAI /v1/chat/completions": chat.completion_create_params.CompletionCreateParamsBase,
    "OpenAI /v1/completions": completions.CompletionCreateParamsBase,
    "OpenAI /v1/embeddings": embedding_create_params.EmbeddingCreateParams,
    "OpenAI /v1/responses": responses.response_create_params.ResponseCreateParamsBase,
    "Anthropic /v1/messages": MessageCreateParamsBase,
    "Anthropic /v1/messages/count_tokens": MessageCountTokensParams,
    "Ollama /api/chat": ChatRequest,
    "Ollama /api/generate": GenerateRequest,
    "Ollama /api/embed": EmbedRequest,
}


def _missing_fields() -> Iterator[str]:
    """Yield a line for each field that a system's client package has and the system's table lacks."""
    for system in SYSTEMS:
        for path in dict.fromkeys(each.path for each in system.calls):
            kind = _TYPES.get(f"{system.name} {path}")
            calls = [each for each in system.calls if each.path == path]
            known = {name for each in calls for name in (*each.body, *(one.name for one in each.fields))}
            for name in [] if kind is None else sorted(_names(kind) - known):
                yield f"{system.name} {path}: {name}"


def _names(kind: type[object]) -> set[str]:
    return {name for base in kind.__mro__ for name in vars(base).get("__annotations__", {}) if not name.startswith("_")}


if __name__ == "__main__":
    DOCUMENT.write_text(document())
    for line in _missing_fields():
        print(f"not in systems.yaml: {line}")
