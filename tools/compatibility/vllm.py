"""vLLM, whose routes are OpenAI's with further fields."""

from __future__ import annotations

from tools.compatibility.bodies import CHAT, GBNF, NOT_HERE, SCHEMA, TEXT, TEXT_ONLY
from tools.compatibility.table import Fields, System, call, different, refused, same, unused

_SHARED: Fields = (
    *same(
        top_k=5,
        min_p=0.1,
        stop_token_ids=[5],
        ignore_eos=True,
        min_tokens=1,
        bad_words=["a"],
        guided_json=SCHEMA,
        guided_regex="a+",
        guided_choice=["a", "b"],
        guided_grammar=GBNF,
        structured_outputs={"choice": ["a"]},
        return_token_ids=True,
        cache_salt="a",
    ),
    *same(repetition_penalty=1.1),
    *different("greater comes first; there the least does", priority=1),
    *unused("special tokens have no text", spaces_between_special_tokens=False),
    *unused("requests have `X-Request-Id`", request_id="a"),
    *unused("there is one", guided_decoding_backend="auto"),
    *refused("there is no beam search", use_beam_search=True, length_penalty=0.5),
    *refused("a text ends before its stop text", include_stop_str_in_output=True),
    *refused("special tokens have no text", skip_special_tokens=False),
    *refused("a long prompt is run whole, or refused", truncate_prompt_tokens=5),
    *refused("take `echo` and `logprobs` of completions", prompt_logprobs=1),
    *refused("take `structured_outputs`", allowed_token_ids=[5], structural_tag="a", guided_whitespace_pattern="a"),
    *refused(NOT_HERE, logits_processors=["a"], kv_transfer_params={"a": 1}, vllm_xargs={"a": 1}),
    *refused("take `return_token_ids`", return_tokens_as_token_ids=True),
)

VLLM = System(
    "vLLM",
    "Fields beside OpenAI's own.",
    (
        call(
            "/v1/chat/completions",
            CHAT,
            _SHARED,
            same(chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=True),
            same(include_reasoning=True),
            refused("take `n`", best_of=2),
            refused("take completions", echo=True),
            refused("the template is the operator's; `template` changes World's", chat_template="a"),
            refused("put them into a message", documents=[{"text": "a"}]),
            refused(TEXT_ONLY, mm_processor_kwargs={"a": 1}),
        ),
        call(
            "/v1/completions",
            TEXT,
            _SHARED,
            same(best_of=2),
            unused("the tokenizer adds none", add_special_tokens=True),
        ),
        call("/tokenize", {"prompt": "Hello"}, same(prompt="a", return_token_strs=True)),
        call("/detokenize", {"tokens": [5]}, same(tokens=[5])),
    ),
    {"POST /v1/rerank": "", "GET /metrics": "names of our own (metrics.md)", "GET /tokenizer_info": ""},
    {"POST /pooling": "take `/v1/embeddings`", "POST /classify": NOT_HERE},
)
