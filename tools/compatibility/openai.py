"""OpenAI's API."""

from __future__ import annotations

from tools.compatibility.bodies import (
    CHAT,
    DEFAULT,
    FUNCTION,
    NO_FILLING_IN,
    NOT_HERE,
    OWN_NAMES,
    TEXT,
    TEXT_ONLY,
    TOOL,
    USER,
)
from tools.compatibility.table import Kept, System, call, different, refused, same, unused

_HABITS = unused(
    user="a",
    metadata={"a": "b"},
    store=False,
    service_tier="auto",
    safety_identifier="a",
    prompt_cache_key="a",
    prompt_cache_retention="24h",
    prompt_cache_options={"mode": "implicit"},
)
_PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
_OWN_TOKENS = "ids and texts of tokens are those of the model's own vocabulary"
_UP_TO_MOST = "as many alternatives as `meta.max_logprobs` of `/v1/models` says"

_BRIEF = {"input": "Hello", "max_output_tokens": 1}

_CHATS = call(
    "/v1/chat/completions",
    CHAT,
    same(
        messages=_PARTS,
        max_completion_tokens=1,
        n=2,
        seed=1,
        stream=True,
        tools=[TOOL],
        tool_choice="none",
        parallel_tool_calls=True,
        functions=[FUNCTION],
        function_call="none",
        response_format={"type": "json_object"},
        logprobs=True,
    ),
    different(OWN_NAMES, model="demo"),
    different(DEFAULT, temperature=0.5, top_p=0.9, frequency_penalty=0.5, presence_penalty=0.5),
    different("256 where it is absent", max_tokens=1),
    different("a blank line ends an answer in World's chat template unless told otherwise; null is none", stop=["a"]),
    different(_OWN_TOKENS, logit_bias={"5": 1}),
    different("where the chat template can say it", reasoning_effort="low"),
    different(
        "whatever it says, the whole answer is made by the model", prediction={"type": "content", "content": "a"}
    ),
    different("only text", modalities=["text"]),
    _HABITS,
    unused(verbosity="low"),
    refused(TEXT_ONLY, audio={"voice": "alloy", "format": "wav"}),
    refused("this server runs no tools of its own", web_search_options={}),
    refused(NOT_HERE, moderation={"model": "m"}),
)

_ASKED = call(
    "/v1/chat/completions",
    {**CHAT, "stream": True, "logprobs": True},
    same(stream_options={"include_usage": True}),
    different(_UP_TO_MOST, top_logprobs=2),
)

_COMPLETIONS = call(
    "/v1/completions",
    TEXT,
    same(prompt=["Hello", "Hello"], n=2, best_of=2, echo=True, seed=1, stream=True, stop=["a"]),
    different(OWN_NAMES, model="demo"),
    different(DEFAULT, temperature=0.5, top_p=0.9, frequency_penalty=0.5, presence_penalty=0.5),
    different("256 where it is absent", max_tokens=1),
    different(_OWN_TOKENS, logit_bias={"5": 1}),
    different(_UP_TO_MOST, logprobs=2),
    unused(user="a"),
    refused(NO_FILLING_IN, suffix="a"),
)

_STREAMED = call("/v1/completions", {**TEXT, "stream": True}, same(stream_options={"include_usage": True}))

_EMBEDDINGS = call(
    "/v1/embeddings",
    {"input": "Hello"},
    same(input=["Hello", "Hello"], encoding_format="base64"),
    different(OWN_NAMES, model="demo"),
    different("a random projection; vectors come from the state after a text (embeddings.md)", dimensions=8),
    unused(user="a"),
)

_RESPONSES = call(
    "/v1/responses",
    _BRIEF,
    same(
        input=USER,
        instructions="Be brief.",
        max_output_tokens=1,
        stream=True,
        store=False,
        tools=[{"type": "function", **FUNCTION}],
        tool_choice="none",
        parallel_tool_calls=True,
        text={"format": {"type": "json_object"}},
        include=["message.output_text.logprobs"],
        metadata={"a": "b"},
        conversation=Kept("/v1/conversations", {}),
    ),
    different("kept for a time and within bounds; one state each", previous_response_id=Kept("/v1/responses", _BRIEF)),
    different(OWN_NAMES, model="demo"),
    different(DEFAULT, temperature=0.5, top_p=0.9),
    different("where the chat template can say it", reasoning={"effort": "low"}),
    unused(
        "a state has no window of a fixed length",
        truncation="auto",
    ),
    unused(
        user="a",
        service_tier="auto",
        safety_identifier="a",
        prompt_cache_key="a",
        prompt_cache_retention="24h",
        prompt_cache_options={"mode": "implicit"},
        max_tool_calls=1,
    ),
    refused("0 unless `include` has `message.output_text.logprobs`", top_logprobs=1),
    refused("answers come while their client waits", background=True, background_options={"a": 1}),
    refused("prompts are not kept here", prompt={"id": "p"}),
    refused("a state has no window that would have to be made smaller", context_management=[{"type": "compaction"}]),
    refused(TEXT_ONLY, image={"a": 1}),
    refused(NOT_HERE, access_programs=[{"a": 1}], moderation={"model": "m"}),
)

_RESPONDED = call("/v1/responses", {**_BRIEF, "stream": True}, same(stream_options={"include_obfuscation": False}))

OPENAI = System(
    "OpenAI",
    "The official packages work with `base_url` at `/v1`.",
    (_CHATS, _ASKED, _COMPLETIONS, _STREAMED, _EMBEDDINGS, _RESPONSES, _RESPONDED),
    {
        "GET /v1/models": "with sizes, weights and device in `meta`",
        "GET /v1/models/{model}": "",
        "GET /v1/responses/{id}": "",
        "DELETE /v1/responses/{id}": "",
        "POST /v1/responses/{id}/cancel": "400, since no response runs in the background",
        "GET /v1/responses/{id}/input_items": "",
        "POST /v1/conversations": "",
        "GET /v1/conversations/{id}": "",
        "POST /v1/conversations/{id}/items": "",
        "GET /v1/conversations/{id}/items": "",
        "POST /v1/responses/input_tokens": "",
    },
    {
        "POST /v1/images/generations": TEXT_ONLY,
        "POST /v1/audio/speech": TEXT_ONLY,
        "POST /v1/moderations": NOT_HERE,
        "POST /v1/files": NOT_HERE,
        "POST /v1/batches": "send the requests side by side: they share the device's steps",
        "POST /v1/assistants": "take responses or conversations",
    },
)
