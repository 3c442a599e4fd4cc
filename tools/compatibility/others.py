"""text-generation-inference, realizar, AstrAI and Pie."""

from __future__ import annotations

from tools.compatibility.bodies import CHAT, DEFAULT, MERGED, USER
from tools.compatibility.table import Kept, System, call, different, inside, refused, same

_GENERATE = call(
    "/generate",
    {"inputs": "Hello", "parameters": {"max_new_tokens": 1}},
    same(inputs="a", stream=True),
    inside(
        "parameters",
        same(
            max_new_tokens=1,
            best_of=2,
            temperature=0.5,
            repetition_penalty=1.1,
            frequency_penalty=0.5,
            top_k=5,
            top_p=0.9,
            typical_p=0.9,
            do_sample=True,
            return_full_text=True,
            stop=["a"],
            truncate=2,
            details=True,
            decoder_input_details=True,
            seed=1,
            top_n_tokens=2,
            grammar={"type": "regex", "value": "a+"},
        ),
        refused("answers have no watermark", watermark=True),
        refused(MERGED, adapter_id="a"),
    ),
)

TGI = System(
    "text-generation-inference",
    "Errors have its types and statuses; answers have `x-queue-time`, `x-inference-time` and `x-time-per-token`.",
    (_GENERATE,),
    {"POST /generate_stream": "", "GET /info": "", "GET /health": "", "GET /metrics": "names of our own (metrics.md)"},
)

REALIZAR = System(
    "realizar",
    "",
    (
        call(
            "/v1/batch/completions",
            {"prompts": ["Hello"], "max_tokens": 1},
            different("truly run in one forward pass; there one by one", prompts=["a", "b"]),
            different(DEFAULT, temperature=0.5, top_k=5),
            same(max_tokens=1, stop=["a"]),
        ),
        call("/v1/batch/tokenize", {"texts": ["Hello"]}, same(texts=["a"])),
    ),
    {"POST /v1/gpu/warmup": "runs one token", "GET /v1/gpu/status": ""},
)

ASTRAI = System(
    "AstrAI",
    "Its chats are OpenAI's. Unlike there, `finish_reason` may be `length`, and events end with a blank line.",
    (call("/v1/chat/completions", CHAT, same(messages=USER, stream=True, max_tokens=1)),),
    {"GET /stats": "", "GET /health": ""},
)

_ADVANCE = call(
    "/v1/states/{name}/advance",
    {"input": "Hello", "top_k": 1},
    different("`forward`, with text or tokens", input=[5]),
    different("`forward` with the positions that are wanted", output_positions=[0]),
    different("`sample_top_k`: ids, texts and log-probabilities", top_k=2),
    different("of every token that was run", logprobs=1),
    different("any number; there high, normal or low", priority=1),
    refused("a state has no pages or places that a mask could hide", mask=[[True]]),
    before=Kept("/v1/states", {"name": "compatibility", "prompt": "Hello"}),
)

_GIVEN = {"data": [0.0] * 128, "shape": [1, 128]}
_ADVANCE_BY_VECTORS = call(
    "/v1/states/{name}/advance",
    {"input_embeddings": _GIVEN, "top_k": 1},
    different(
        "`forward` with embeddings, which come in the request; not for RWKV-7 with DeepEmbed", input_embeddings=_GIVEN
    ),
    before=Kept("/v1/states", {"name": "compatibility of vectors", "prompt": "Hello"}),
)

PIE = System(
    "Pie",
    "Pie has commands on pages of attention; here they are routes on named states.",
    (_ADVANCE, _ADVANCE_BY_VECTORS),
    {
        "POST /v1/states": "`allocate` and `export`: for an owner until the lease ends, or persistent",
        "DELETE /v1/states/{name}": "`deallocate` and `unexport`",
        "GET /v1/states": "the list of all exports",
        "POST /v1/states/{name}/open": "`import`: a copy under another name",
        "POST /v1/states/{name}/take": "`import` of what nobody else keeps",
        "POST /v1/states/{name}/fork": "`copy` of a page: one copy on the device",
        "GET /v1/leases": "what each owner has",
        "DELETE /v1/leases/{owner}": "what happens where an instance ends",
    },
)
