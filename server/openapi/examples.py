"""One example of each request's body, by the name of its schema."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_ASKED = [{"role": "user", "content": "What is the capital of France?"}]

EXAMPLES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "AddItemsRequest": {"items": _ASKED},
        "AdvanceStateRequest": {"input": "My name is Ben.", "top_k": 3},
        "Ai00ChatRequest": {"messages": [{"role": "User", "content": "Hello"}], "max_tokens": 64},
        "Ai00CompletionRequest": {"prompt": ["The sky is"], "max_tokens": 16},
        "Ai00EmbeddingsRequest": {"input": "The sky is blue.", "layer": 0},
        "BatchCompletionRequest": {"prompts": ["The sky is", "The sea is"], "max_tokens": 16},
        "BatchTokenizeRequest": {"texts": ["The sky", "The sea"]},
        "ChatRequest": {"messages": _ASKED, "max_tokens": 64},
        "ChoicesRequest": {"input": "The sky is", "choices": [" blue.", " green."]},
        "ChoosesRequest": {"input": "The sky is", "choices": [" blue.", " green."]},
        "CompareStatesRequest": {"state": "guide", "other": "guide 2"},
        "CompletionRequest": {"prompt": "The sky is", "max_tokens": 16},
        "CountTokensRequest": {"model": "rwkv", "messages": _ASKED},
        "CreateConversationRequest": {"items": _ASKED, "metadata": {"topic": "France"}},
        "CreateStateRequest": {"name": "guide", "prompt": "User: You are a guide.\n\nAssistant: Welcome."},
        "DetokenizeRequest": {"tokens": [72, 105]},
        "EmbedRequest": {"model": "rwkv", "input": ["The sky is blue.", "The sea is deep."]},
        "EmbeddingsRequest": {"input": ["The sky is blue.", "The sea is deep."]},
        "ExchangeRequest": {"app_id": "ann", "app_secret": "KEY"},
        "EmbedsRequest": {"input": "The sky is blue. Grass is green.", "max_tokens": 510, "prefix": "query:"},
        "ForkStateRequest": {"names": ["guide 1", "guide 2"]},
        "ListRequest": {"path": "."},
        "LlamaCompletionRequest": {"prompt": "The sky is", "n_predict": 16},
        "LlamaEmbeddingRequest": {"content": "The sky is blue."},
        "LoadConfigRequest": {"path": "assets/configs/Config.toml"},
        "MessagesRequest": {"model": "rwkv", "max_tokens": 64, "messages": _ASKED},
        "NewStateBody": {"name": "guide, opened"},
        "OllamaChatRequest": {"model": "rwkv", "messages": _ASKED, "stream": False},
        "OllamaGenerateRequest": {"model": "rwkv", "prompt": "What is the capital of France?", "stream": False},
        "OlderEmbedRequest": {"model": "rwkv", "prompt": "The sky is blue."},
        "ReloadRequest": {"model_path": "rwkv7-1.5b.st", "name": "rwkv", "add": True},
        "RerankRequest": {"query": "What is blue?", "documents": ["The sky is blue.", "Grass is green."], "top_n": 1},
        "ResponsesRequest": {"input": "What is the capital of France?", "max_output_tokens": 64},
        "SaveConfigRequest": {
            "path": "assets/configs/Config.toml",
            "config": {"model": {"path": "assets/models", "name": "rwkv7-1.5b.st"}},
        },
        "SaveRequest": {"path": "merged.safetensors"},
        "ShowRequest": {"model": "rwkv"},
        "SlotActionRequest": {"filename": "guide"},
        "StateFileRef": {"path": "guide.state", "name": "guide"},
        "StatesRequest": {"input": "The sky is blue."},
        "TakeStateRequest": {"name": "guide 3"},
        "TgiRequest": {"inputs": "The sky is", "parameters": {"max_new_tokens": 16}},
        "TokenizeRequest": {"content": "The sky"},
        "UnloadRequest": {"model": "rwkv"},
        "UnzipRequest": {"path": "web.zip", "output": "web"},
        "UpdateConversationRequest": {"metadata": {"topic": "capitals"}},
    }
)
