"""/v1/chat/completions: the prompt made from a conversation, and the answer in both forms."""

from __future__ import annotations

import pytest

from rnn_engine.chat_template.jinja import JinjaTemplate
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.openai.schemas import ChatCompletion, ChatCompletionChunk, InputTokens
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import PIECES, Body, Serve, error_of, post, post_stream

PATH = "/v1/chat/completions"
HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}


async def prompt_of(serve: Serve, body: Body, engine: FakeEngine | None = None) -> str:
    """Return the prompt's text that the engine gets."""
    engine = engine or FakeEngine()
    await post(await serve(engine), PATH, ChatCompletion, body)
    return engine.detokenize(engine.requests[-1].prompt).decode()


async def test_answer_has_openai_shape(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: " Hello"))
    answer = await post(client, PATH, ChatCompletion, {**HI, "seed": 3})
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "seed": 3,
        }
    ]
    assert answer["usage"]["prompt_tokens"] == len("User: Hi\n\nAssistant:")
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@PIECES
async def test_stream_has_role_first_and_finish_reason_last(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "  Hé"))
    body = {**HI, "stream_options": {"include_usage": True}, "max_completion_tokens": 9}
    *chunks, last = await post_stream(client, PATH, ChatCompletionChunk, body)
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"content": "H"},
        {"content": "é"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len("  Hé".encode())


async def test_every_chunk_has_the_usage_so_far_on_request(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "ab"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await post_stream(client, PATH, ChatCompletionChunk, {**HI, "n": 2, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["usage"] is not None]
    assert len(counts) == len(chunks)
    assert counts == sorted(counts)
    assert {*range(1, counts[-1])} <= {*counts}
    assert chunks[-2]["usage"] == chunks[-1]["usage"]
    without = await post_stream(
        client, PATH, ChatCompletionChunk, {**HI, "stream_options": {**options, "include_usage": False}}
    )
    assert not any("usage" in chunk for chunk in without)


async def test_stream_without_usage_does_not_mention_it(serve: Serve) -> None:
    chunks = await post_stream(await serve(FakeEngine()), PATH, ChatCompletionChunk, HI)
    assert not any("usage" in chunk for chunk in chunks)


async def test_copies_stream_side_by_side(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda request: str(request.sampling.seed))
    chunks = await post_stream(await serve(engine), PATH, ChatCompletionChunk, {**HI, "n": 2, "seed": 5})
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content") or ""
    assert texts == {number: str(request.sampling.seed) for number, request in enumerate(engine.requests)}
    assert texts[0] == "5" != texts[1]


async def test_each_chunk_tells_the_times_of_its_choice(serve: Serve) -> None:
    body = {**HI, "n": 2, "timings_per_token": True, "stream_options": {"include_usage": True}}
    *chunks, last = await post_stream(await serve(FakeEngine()), PATH, ChatCompletionChunk, body)
    for choice in range(2):
        told = [chunk for chunk in chunks if chunk["choices"][0]["index"] == choice]
        counts = [chunk["timings"]["predicted_n"] for chunk in told if chunk["choices"][0]["delta"].get("content")]
        assert counts == list(range(counts[0], counts[0] + len(counts)))
        assert told[-1]["timings"]["predicted_n"] == counts[-1]
    assert "timings" not in last


async def test_conversation_becomes_records(serve: Serve) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "USER", "content": " One\n\n\ntwo \n \n\t three\n"},
        {"role": "Assistant", "content": "Yes.", "refusal": None, "tool_calls": None},
        {"role": "tool", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]},
        {"role": "developer", "content": "Go on."},
    ]
    assert await prompt_of(serve, {"messages": messages}) == (
        "System: Be brief.\n\n"
        "User: One\ntwo \n\t three\n\n"
        "Assistant: Yes.\n\n"
        "Observation: 42\n\n"
        "System: Go on.\n\n"
        "Assistant:"
    )


async def test_names_and_template_of_the_client(serve: Serve) -> None:
    body = {
        "messages": {"role": "User", "content": "{role}"},
        "names": {"User": "Bob", "assistant": "Alice"},
        "template": {"record": "<{role}>{content}", "prefix": "<{assistant}>", "sep": "|"},
    }
    assert await prompt_of(serve, body) == "<Bob>{role}|<Alice>"


@pytest.mark.parametrize(
    ("fields", "stops"),
    [
        *(
            ({}, [b"\n\n"]),
            ({"stop": None}, [b"\n\n"]),
            ({"stop": []}, [b"\n\n"]),
            ({"template_stop": None}, [b"\n\n"]),
        ),
        ({"stop": "x"}, [b"x", b"\n\n"]),
        ({"stop": ["User:"], "template_stop": True}, [b"User:", b"\n\n"]),
        ({"template_stop": False}, []),
        ({"stop": ["x"], "template_stop": False}, [b"x"]),
        ({"stop": ["x"], "ignore_eos": True}, [b"x"]),
        ({"ignore_eos": True, "template_stop": True}, [b"\n\n"]),
    ],
)
async def test_blank_line_ends_an_answer_unless_the_client_says_otherwise(
    serve: Serve, fields: Body, stops: list[bytes]
) -> None:
    engine = FakeEngine(reply=lambda _: "One\n\nUser: Two")
    answer = await post(await serve(engine), PATH, ChatCompletion, {**HI, **fields})
    assert list(engine.requests[0].stop) == stops
    assert (answer["choices"][0]["message"]["content"] == "One") == (b"\n\n" in stops)


async def test_earlier_replies_seed_the_penalties(serve: Serve) -> None:
    engine = FakeEngine()
    messages = [
        {"role": role, "content": text} for role, text in [("assistant", "ab"), ("user", "c"), ("assistant", "d")]
    ]
    await post(await serve(engine), PATH, ChatCompletion, {"messages": messages, "presence_penalty": 0.3})
    assert list(engine.requests[0].penalised_prompt) == encode("abd")


@pytest.mark.parametrize(
    ("fields", "is_counted"),
    [
        ({"presence_penalty": 0, "frequency_penalty": 0}, False),
        ({"presence_penalty": 0, "frequency_penalty": 0, "repeat_penalty": 1.5}, False),
        ({"presence_penalty": 0.5, "frequency_penalty": 0}, True),
        ({"presence_penalty": 0, "frequency_penalty": -0.5}, True),
        ({"presence_penalty": 0, "frequency_penalty": 0, "sampler": {"type": "Nucleus", "presence_penalty": 1}}, True),
        ({"sampler": {"type": "Nucleus", "presence_penalty": 0, "frequency_penalty": 0}}, False),
    ],
)
async def test_earlier_replies_are_tokenized_only_for_penalties_that_count_them(
    serve: Serve, fields: Body, is_counted: bool
) -> None:
    engine = FakeEngine()
    messages = [{"role": "assistant", "content": "ab"}, {"role": "user", "content": "c"}]
    await post(await serve(engine), PATH, ChatCompletion, {"messages": messages, **fields})
    assert list(engine.requests[0].penalised_prompt) == (encode("ab") if is_counted else [])


@pytest.mark.parametrize("jinja", [False, True])
@pytest.mark.parametrize("depth", [500, *range(870, 1000, 5), 5000, 300_000])
async def test_deep_arguments_of_an_earlier_call_are_read_or_refused(serve: Serve, depth: int, jinja: bool) -> None:
    template = JinjaTemplate("{{ messages[0].tool_calls[0].function.arguments | tojson }}", {})
    engine = FakeEngine(chat_template=template) if jinja else FakeEngine()
    call = {"id": "1", "function": {"name": "f", "arguments": "[" * depth + "]" * depth}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "c"}]
    response = await (await serve(engine)).post(PATH, json={"messages": messages})
    is_refused = response.status == 400  # between the two depths, it depends on the stack of callers
    assert is_refused or response.status == 200
    assert is_refused == (depth > 500) or 500 < depth < 1000


async def test_logprobs(serve: Serve) -> None:
    body = {**HI, "logprobs": True, "top_logprobs": 1}
    client = await serve(FakeEngine(reply=lambda _: "é"))
    answer = await post(client, PATH, ChatCompletion, body)
    entries = [
        {
            "token": f"bytes:\\x{byte:02x}",
            "logprob": -(byte + 1) / 100,
            "bytes": [byte],
            "top_logprobs": [{"token": "\x00", "logprob": -0.01, "bytes": [0]}],
        }
        for byte in "é".encode()
    ]
    assert answer["choices"][0]["logprobs"] == {"content": entries, "refusal": None}
    chunks = await post_stream(client, PATH, ChatCompletionChunk, body)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part is not None for entry in part["content"]] == entries


async def test_logprobs_without_alternatives(serve: Serve) -> None:
    engine = FakeEngine()
    answer = await post(await serve(engine), PATH, ChatCompletion, {**HI, "logprobs": True})
    assert engine.requests[0].logprobs == 0
    assert all(entry["top_logprobs"] == [] for entry in answer["choices"][0]["logprobs"]["content"])


async def test_token_ids_on_request(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: " ab"))
    body = {**HI, "return_token_ids": True}
    whole = await post(client, PATH, ChatCompletion, body)
    assert whole["choices"][0]["token_ids"] == encode(" ab")
    assert whole["prompt_token_ids"] == encode("User: Hi\n\nAssistant:")
    first, *chunks = await post_stream(client, PATH, ChatCompletionChunk, body)
    assert first["choices"][0]["prompt_token_ids"] == encode("User: Hi\n\nAssistant:")
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == encode(" ab")


async def test_tokens_named_by_their_ids_on_request(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "ab"))
    body = {**HI, "logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    answer = await post(client, PATH, ChatCompletion, body)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token}" for token in encode("ab")]
    assert all(top["token"].startswith("token_id:") for entry in entries for top in entry["top_logprobs"])


async def test_harmless_fields_of_official_clients_are_accepted(serve: Serve) -> None:
    body = {
        **HI,
        "user": "me",
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "frequency_penalty": None,
    }
    await post(await serve(FakeEngine()), PATH, ChatCompletion, body)


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Bye"},
]


async def request_of(serve: Serve, body: Body) -> GenerateRequest:
    engine = FakeEngine()
    await post(await serve(engine), PATH, ChatCompletion, body)
    return engine.requests[0]


async def test_turns_end_after_the_separator_of_each_message(serve: Serve) -> None:
    request = await request_of(serve, {"messages": CONVERSATION})
    texts = [FakeEngine().detokenize(request.prompt[:turn]).decode() for turn in request.turn_positions]
    assert texts[0] == "System: Be brief.\n\n"
    assert texts[1] == "System: Be brief.\n\nUser: Hé\n\n"
    assert texts[-1] + "Assistant:" == FakeEngine().detokenize(request.prompt).decode()
    assert len(texts) == len(CONVERSATION)
    assert request.checkpoint_positions == []


async def test_the_end_of_a_system_text_is_marked_where_it_is_worth_it(serve: Serve) -> None:
    system = {"role": "system", "content": "Be brief. " * 5}
    request = await request_of(serve, {"messages": [system, *CONVERSATION[1:]]})
    assert request.checkpoint_positions == [request.turn_positions[0]]
    request = await request_of(serve, {"messages": [CONVERSATION[1], system]})
    assert request.checkpoint_positions == []


@pytest.mark.parametrize("flag", [{"cache": True}, {"cache_control": {"type": "ephemeral"}}])
async def test_a_message_can_be_marked(serve: Serve, flag: Body) -> None:
    messages = [{**CONVERSATION[0], **flag}, *CONVERSATION[1:]]
    request = await request_of(serve, {"messages": messages})
    assert request.checkpoint_positions == [request.turn_positions[0]]


async def test_a_mark_is_yes_or_no(serve: Serve) -> None:
    client = await serve(FakeEngine())
    refused = await client.post(PATH, json={"messages": [{"role": "user", "content": "Hi", "cache": "yes"}]})
    assert refused.status == 400
    assert "messages.0.cache: 'yes' is not allowed" in (await refused.json())["error"]["message"]


async def test_a_jinja_template_of_the_model(serve: Serve) -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ mood }}"
    engine = FakeEngine(
        chat_template=JinjaTemplate(source, {}, stop_tokens=["<end>"]), special_tokens={"<text>": 0, "<end>": 7}
    )
    body = {"messages": [{"role": "developer", "content": "S"}, *HI["messages"]], "chat_template_kwargs": {"mood": "!"}}
    assert await prompt_of(serve, body, engine) == "<system>S<user>Hi!"
    assert (list(engine.requests[0].stop), list(engine.requests[0].stop_tokens)) == ([], [0, 7])
    assert await prompt_of(serve, {**body, "names": {"user": "Bob"}}, engine) == "System: S\n\nBob: Hi\n\nAssistant:"


async def test_a_template_that_refuses_is_a_bad_request(serve: Serve) -> None:
    client = await serve(FakeEngine(chat_template=JinjaTemplate("{{ raise_exception('alternate!') }}", {})))
    error = await error_of(await client.post(PATH, json=HI), 400)
    assert error["param"] == "messages"
    assert "alternate!" in error["message"]


BEGUN = [*HI["messages"], {"role": "assistant", "content": "I am "}]


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({}, "Assistant: I am"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "Assistant: I am"),
        ({"add_generation_prompt": False}, "Assistant: I am"),
        ({"add_generation_prompt": True}, "Assistant: I am\n\nAssistant:"),
        ({"add_generation_prompt": False, "continue_final_message": False}, "Assistant: I am\n\n"),
    ],
)
async def test_a_last_message_of_the_assistant_is_continued(serve: Serve, fields: Body, ending: str) -> None:
    assert await prompt_of(serve, {"messages": BEGUN, **fields}) == f"User: Hi\n\n{ending}"


@pytest.mark.parametrize("fields", [HI, {"messages": BEGUN, "add_generation_prompt": True}])
async def test_what_can_not_be_continued_is_refused(serve: Serve, fields: Body) -> None:
    client = await serve(FakeEngine())
    error = await error_of(await client.post(PATH, json={**fields, "continue_final_message": True}), 400)
    assert error["param"] == "continue_final_message"


async def test_thoughts_come_apart_from_content(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: " <think>\nHm.\n</think>\nYes. "))
    whole = await post(client, PATH, ChatCompletion, HI)
    message = whole["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "Yes. ",
        "refusal": None,
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
    }
    deltas = [chunk["choices"][0]["delta"] for chunk in await post_stream(client, PATH, ChatCompletionChunk, HI)]
    for name in ("reasoning_content", "reasoning"):
        assert "".join(delta.get(name, "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes. "


async def test_thoughts_are_left_out_if_the_client_says_so(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: " <think>\nHm.\n</think>\nYes. "))
    body = {**HI, "include_reasoning": False}
    whole = await post(client, PATH, ChatCompletion, body)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Yes. ", "refusal": None}
    deltas = [chunk["choices"][0]["delta"] for chunk in await post_stream(client, PATH, ChatCompletionChunk, body)]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes. "
    assert all(delta.keys() <= {"role", "content", "refusal"} for delta in deltas)


async def test_thoughts_of_earlier_answers_have_either_name_or_both(serve: Serve) -> None:
    source = "{% for each in messages %}{{ each.reasoning_content }};{% endfor %}"
    engine = FakeEngine(chat_template=JinjaTemplate(source, {}))
    client = await serve(engine)
    for fields in (
        {"reasoning": "Hm."},
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm.", "reasoning_content": "Hm."},
    ):
        earlier = {"role": "assistant", "content": "Yes.", **fields}
        await post(client, PATH, ChatCompletion, {"messages": [*HI["messages"], earlier, *HI["messages"]]})
        assert engine.detokenize(engine.requests[-1].prompt) == b";Hm.;;"


async def test_a_prompt_that_begins_the_thoughts(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: ">\nHm.\n\nHm!</think>\nYes.\n\nUser: ")
    body = {**HI, "chat_template_kwargs": {"enable_thinking": True}}
    answer = await post(await serve(engine), PATH, ChatCompletion, body)
    assert answer["choices"][0]["message"]["reasoning_content"] == "Hm.\n\nHm!"
    assert answer["choices"][0]["message"]["content"] == "Yes."


@pytest.mark.parametrize(
    ("reply", "content"), [("  Hé!", "Hé!"), ("Hi", "Hi"), (" <think>é</think>\nYes é", "Yes é"), (" é\n\nUser", "é")]
)
async def test_the_tokens_of_log_probabilities_join_to_the_content(serve: Serve, reply: str, content: str) -> None:
    client = await serve(FakeEngine(reply=lambda _: reply))
    whole = await post(client, PATH, ChatCompletion, {**HI, "logprobs": True})
    entries = whole["choices"][0]["logprobs"]["content"]
    assert whole["choices"][0]["message"]["content"] == content
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == content
    chunks = await post_stream(client, PATH, ChatCompletionChunk, {**HI, "logprobs": True})
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part is not None for entry in part["content"]] == entries


async def test_a_space_as_stop_ends_an_answer_after_its_first_word(serve: Serve) -> None:
    """The space between `Assistant:` and the answer is the template's."""
    client = await serve(FakeEngine(reply=lambda _: " Paris is it."))
    answer = await post(client, PATH, ChatCompletion, {**HI, "stop": " "})
    assert answer["choices"][0]["message"]["content"] == "Paris"
    assert answer["choices"][0]["finish_reason"] == "stop"
    continued = await post(client, PATH, ChatCompletion, {"messages": BEGUN, "stop": " "})
    assert continued["choices"][0]["message"]["content"] == ""


async def test_the_fingerprint_is_that_of_the_model(serve: Serve) -> None:
    client = await serve(FakeEngine())
    prints = {(await post(client, PATH, ChatCompletion, HI))["system_fingerprint"] for _ in range(2)}
    assert len(prints) == 1
    assert next(iter(prints)).startswith("b")


async def test_white_space_that_continues_an_answer_is_kept(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: " well"))
    answer = await post(client, PATH, ChatCompletion, {"messages": BEGUN})
    assert answer["choices"][0]["message"]["content"] == " well"


async def test_thoughts_stay_in_the_content_where_that_is_wanted(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: " <think>Hm.</think> Yes.")
    for settings, body in (
        (ServerSettings(), {**HI, "reasoning_format": "none"}),
        (ServerSettings(reasoning_format="none"), HI),
    ):
        answer = await post(await serve(engine, settings), PATH, ChatCompletion, body)
        assert answer["choices"][0]["message"]["content"] == "<think>Hm.</think> Yes."


@pytest.mark.parametrize(
    ("fields", "budget"),
    [({}, None), ({"thinking_budget_tokens": 7}, 7), ({"thinking_token_budget": 0}, 0), ({"guided_regex": "a"}, None)],
)
async def test_a_budget_and_a_grammar_heed_the_thoughts(serve: Serve, fields: Body, budget: int | None) -> None:
    engine = FakeEngine()
    for thinks in (True, False):
        body = {**HI, "chat_template_kwargs": {"enable_thinking": thinks}, **fields}
        await post(await serve(engine), PATH, ChatCompletion, body)
    with_thoughts, without = engine.requests
    assert without.thinking is None
    assert (with_thoughts.thinking is not None) == (fields != {})
    if with_thoughts.thinking is not None:
        assert with_thoughts.thinking.budget == budget
        assert with_thoughts.thinking.end == b"</think>"


async def test_input_tokens_are_counted_without_running_the_model(serve: Serve) -> None:
    engine = FakeEngine()
    answer = await post(await serve(engine), "/v1/chat/completions/input_tokens", InputTokens, HI)
    assert answer["input_tokens"] == len(encode("User: Hi\n\nAssistant:"))
    assert not engine.requests


async def test_verbose_tells_what_the_model_read(serve: Serve) -> None:
    client = await serve(FakeEngine())
    answer = await post(client, PATH, ChatCompletion, {**HI, "verbose": True})
    assert answer["__verbose"] == {"prompt": "User: Hi\n\nAssistant:"}
    assert "__verbose" not in await post(client, PATH, ChatCompletion, HI)
