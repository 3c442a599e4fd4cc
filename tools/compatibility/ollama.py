"""Ollama's API."""

from __future__ import annotations

from tools.compatibility.bodies import DEFAULT, NO_FILLING_IN, NOT_HERE, OWN_NAMES, TEXT_ONLY, TOOL, USER
from tools.compatibility.table import System, call, different, inside, refused, same, unused

_ONE = {"num_predict": 1}
_TOLD = "only OpenAI's routes tell them"
_THINK = "where the chat template can say it"
_LIBRARY = "the operator names models, by file or by their name on the Hub"

_OPTIONS = inside(
    "options",
    same(
        seed=1,
        num_predict=1,
        stop=["a"],
        min_p=0.1,
        typical_p=0.9,
        repeat_last_n=8,
        repeat_penalty=1.1,
        mirostat=1,
        mirostat_tau=4.0,
        mirostat_eta=0.2,
    ),
    different(DEFAULT, temperature=0.5, top_p=0.9, top_k=5, presence_penalty=0.5, frequency_penalty=0.5),
    unused("a state has no window of a fixed length", num_ctx=100, num_keep=4),
    unused(
        "how the model runs is the operator's",
        numa=True,
        num_batch=8,
        num_gpu=1,
        main_gpu=0,
        low_vram=True,
        f16_kv=True,
        logits_all=True,
        vocab_only=True,
        use_mmap=True,
        use_mlock=True,
        embedding_only=True,
        num_thread=2,
    ),
    unused(penalize_newline=True),
    refused(NOT_HERE, tfs_z=0.5),
)

_CHATS = call(
    "/api/chat",
    {"model": "demo", "messages": USER, "stream": False, "options": _ONE},
    same(messages=USER, stream=True, format="json", tools=[TOOL]),
    different(OWN_NAMES, model="demo"),
    different(_THINK, think=False),
    unused("a model stays loaded as the operator says", keep_alive="5m"),
    refused(_TOLD, logprobs=True, top_logprobs=2),
    _OPTIONS,
)

_GENERATE = call(
    "/api/generate",
    {"model": "demo", "prompt": "Hello", "stream": False, "options": _ONE},
    same(prompt="Hello", stream=True, format="json", system="Be brief.", raw=True),
    different(OWN_NAMES, model="demo"),
    different(_THINK, think=False),
    unused("a model stays loaded as the operator says", keep_alive="5m"),
    refused(NO_FILLING_IN, suffix="a"),
    refused("the chat template is the model's", template="{{ .Prompt }}"),
    refused("a conversation goes on with `/api/chat` or with a state", context=[1, 2]),
    refused(TEXT_ONLY, images=["aGk="], width=64, height=64, steps=4),
    refused(_TOLD, logprobs=True, top_logprobs=2),
)

OLLAMA = System(
    "Ollama",
    "The official package works with the server's address as `host`. Options are the same for all routes.",
    (
        _CHATS,
        _GENERATE,
        call(
            "/api/embed",
            {"model": "demo", "input": "Hello"},
            same(input=["Hello", "Hello"], model="demo"),
            different("a random projection of the vector", dimensions=8),
            unused(truncate=True, keep_alive="5m", options={}),
        ),
        call("/api/show", {"model": "demo"}, same(model="demo"), unused(verbose=True)),
    ),
    {"GET /api/tags": "", "GET /api/ps": "", "GET /api/version": "", "POST /api/embeddings": "the older form of embed"},
    {
        "POST /api/pull": _LIBRARY,
        "POST /api/push": _LIBRARY,
        "POST /api/create": _LIBRARY,
        "POST /api/copy": _LIBRARY,
        "DELETE /api/delete": _LIBRARY,
    },
)
