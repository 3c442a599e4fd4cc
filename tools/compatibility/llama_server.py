"""llama-server of llama.cpp."""

from __future__ import annotations

from tools.compatibility.bodies import CHAT, DEFAULT, GBNF, MERGED, NO_FILLING_IN, NOT_HERE, SCHEMA, USER
from tools.compatibility.table import System, call, different, refused, same, unused

_FOUND = "what is known of a prompt is found by its tokens, in any slot"
_NOTED = "a number under which a prompt is noted for `/slots/{id}`; any sequence may take any slot"
_NO_WINDOW = "a state has no window whose tokens could be kept or dropped"

_COMPLETION = call(
    "/completion",
    {"prompt": "Hello", "n_predict": 1},
    same(
        prompt=[1, "a"],
        n_predict=1,
        stream=True,
        stop=["a"],
        dynatemp_range=0.1,
        dynatemp_exponent=1.0,
        min_p=0.1,
        typical_p=0.9,
        repeat_penalty=1.1,
        repeat_last_n=8,
        dry_multiplier=0.5,
        dry_base=1.75,
        dry_allowed_length=2,
        dry_penalty_last_n=8,
        dry_sequence_breakers=["\n"],
        xtc_probability=0.1,
        xtc_threshold=0.1,
        mirostat=1,
        mirostat_tau=4.0,
        mirostat_eta=0.2,
        top_n_sigma=1.0,
        grammar=GBNF,
        json_schema=SCHEMA,
        seed=1,
        ignore_eos=True,
        logit_bias=[[5, 1.0]],
        n_probs=2,
        samplers=["top_k", "temperature"],
        return_tokens=True,
        response_fields=["content"],
        n_cmpl=2,
        return_progress=True,
        timings_per_token=True,
    ),
    same(**{"speculative.n_max": 4}),
    different(DEFAULT, temperature=0.5, top_k=5, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5),
    unused(_FOUND, cache_prompt=True, n_cache_reuse=4),
    different(_NOTED, id_slot=0),
    unused(_NO_WINDOW, n_keep=4, n_discard=4),
    refused(NOT_HERE, min_keep=1),
    refused("take `timeout`", t_max_predict_ms=100),
    refused("probabilities are told as the model gives them, before sampling", post_sampling_probs=True),
    refused(MERGED, lora=[{"id": 0, "scale": 0.5}]),
    refused("the model knows no lines", n_indent=2),
)

_CHATS = call(
    "/v1/chat/completions",
    CHAT,
    same(
        messages=USER,
        chat_template_kwargs={"enable_thinking": False},
        reasoning_format="none",
        thinking_budget_tokens=4,
        grammar=GBNF,
        json_schema=SCHEMA,
        samplers=["top_k"],
        add_generation_prompt=True,
        return_progress=True,
        timings_per_token=True,
    ),
    unused(_FOUND, cache_prompt=True),
    different(_NOTED, id_slot=0),
    refused("take `logprobs` and `top_logprobs`", n_probs=2),
    refused("calls are always told apart from text", parse_tool_calls=True),
    refused("the chat template says it", thinking_forced_open=True),
    refused("take `reasoning_format`", reasoning_in_content=True),
)

LLAMA_SERVER = System(
    "llama-server",
    "All paths, with and without `/v1`. Chats and completions under OpenAI's names have its own fields, too.",
    (
        _COMPLETION,
        _CHATS,
        call(
            "/tokenize",
            {"content": "Hello"},
            same(content="a", with_pieces=True),
            unused(
                "the tokenizer adds none; a text's own special tokens stay text", add_special=True, parse_special=True
            ),
        ),
        call("/detokenize", {"tokens": [5]}, same(tokens=[5])),
        call("/apply-template", {"messages": USER}, same(messages=USER, chat_template_kwargs={"a": 1})),
        call(
            "/embedding",
            {"content": "Hello"},
            same(content=["a", "b"]),
            different("as for `/v1/embeddings`: -1 is as the model has it", embd_normalize=2),
        ),
        call(
            "/rerank",
            {"query": "a", "documents": ["b"]},
            different(
                "scored by the probability of the query after each text; no model was trained for it",
                query="a",
                documents=["b"],
            ),
            same(top_n=1),
        ),
    ),
    {
        "GET /health": "",
        "GET /props": "",
        "GET /slots": "any sequence may take any slot",
        "POST /slots/{id}": "`save`, `restore` and `erase`, on named states",
        "GET /metrics": "names of our own (metrics.md)",
        "GET /models": "",
        "GET /lora-adapters": "",
    },
    {"POST /infill": NO_FILLING_IN, "POST /lora-adapters": MERGED, "POST /props": "set options when the server starts"},
)
