"""Histories that began with another server: every type of the official packages, what is left out, and what refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import pytest
from anthropic.types import ContentBlockParam
from anthropic.types.beta import BetaContentBlockParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from pydantic import BaseModel
from typing_extensions import is_typeddict

from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve, error_of

CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
IMAGE = "data:image/png;base64,aGVsbG8="


def examples(kind: Any, *, whole: bool, depth: int = 0) -> Iterator[Any]:  # noqa: ANN401
    """Yield an example of each type in `kind`, which may be a union: with all fields if `whole`, or only the required.

    Of the unions within a type, only the first member is taken.
    """
    origin = get_origin(kind)
    if origin in (Annotated, Required, NotRequired):
        yield from examples(get_args(kind)[0], whole=whole, depth=depth)
    elif origin in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not NoneType]
        for member in members[: None if depth == 0 else 1]:
            yield from examples(member, whole=whole, depth=depth)
    else:
        yield example(kind, whole=whole, depth=depth)


def example(kind: Any, *, whole: bool, depth: int) -> Any:  # noqa: ANN401
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return args[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        hints = {field.alias or name: field.annotation for name, field in fields if whole or field.is_required()}
        return {name: only(hint, whole, depth) for name, hint in hints.items()}
    if is_typeddict(kind):
        named = get_type_hints(kind, include_extras=True).items()
        return {name: only(hint, whole, depth) for name, hint in named if whole or _is_required(kind, hint)}
    if origin in (list, Iterable) or (isinstance(origin, type) and issubclass(origin, Iterable)):
        if issubclass(origin, Mapping):
            return {"field": "value"}
        return list(examples(args[0], whole=whole, depth=1))[:2] if depth < 8 else []
    return {str: "text", int: 3, float: 0.5, bool: True, object: {"a": 1}}.get(kind, {})


def _is_required(kind: Any, hint: object) -> bool:  # noqa: ANN401
    return get_origin(hint) is Required or (kind.__total__ and get_origin(hint) is not NotRequired)


def only(kind: Any, whole: bool, depth: int) -> Any:  # noqa: ANN401
    return next(examples(kind, whole=whole, depth=depth + 1))


def prompt_of(engine: FakeEngine) -> str:
    return bytes(token - 1 for token in engine.requests[-1].prompt).decode()


def chat(path: str, *history: Body) -> Body:
    """Return a request of the route `path` whose conversation is `history`."""
    limit: Body = {} if path == OLLAMA else {"max_output_tokens" if path == RESPONSES else "max_tokens": 5}
    if path == OLLAMA:
        limit = {"stream": False}
    return {**limit, "input" if path == RESPONSES else "messages": list(history)}


ASK: Body = {"role": "user", "content": "And now?"}


@pytest.mark.parametrize("whole", [True, False])
async def test_a_history_may_have_every_item_of_openais_responses(serve: Serve, whole: bool) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    items = [*examples(ResponseInputItemParam, whole=whole), *examples(ResponseOutputItem, whole=whole)]
    assert len(items) > 50
    for item in items:
        for place in ([ASK, item, ASK], [ASK, item], [ASK, item, item, ASK]):
            response = await client.post(RESPONSES, json=chat(RESPONSES, *place))
            assert response.status == 200, (item, await response.text())
            assert prompt_of(engine).count("And now?") == place.count(ASK)
    response = await client.post(RESPONSES, json=chat(RESPONSES, *items, ASK))
    assert response.status == 200, await response.text()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kinds", [ContentBlockParam, BetaContentBlockParam])
async def test_a_history_may_have_every_block_of_anthropics_messages(serve: Serve, whole: bool, kinds: Any) -> None:  # noqa: ANN401
    engine = FakeEngine()
    client = await serve(engine)
    blocks = list(examples(kinds, whole=whole))
    assert len(blocks) >= 16
    for block in blocks:
        roles = ["user"] if block["type"] == "tool_result" else ["assistant"]
        roles += ["user"] if block["type"] in ("image", "document", "container_upload", "search_result") else []
        for role in roles:
            history = [ASK, {"role": role, "content": [block]}, {"role": "assistant", "content": "Yes."}, ASK]
            for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
                response = await client.post(path, json=chat(path, *history))
                assert response.status == 200, (block, role, await response.text())
        within: Body = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]}
        response = await client.post(MESSAGES, json=chat(MESSAGES, ASK, within))
        assert response.status == 200, (block, await response.text())


@pytest.mark.parametrize("whole", [True, False])
async def test_a_history_may_have_every_message_of_openais_chats(serve: Serve, whole: bool) -> None:
    client = await serve(FakeEngine())
    for message in examples(ChatCompletionMessageParam, whole=whole):
        response = await client.post(CHAT, json=chat(CHAT, ASK, message, {"role": "assistant", "content": "Yes."}, ASK))
        assert response.status == 200, (message, await response.text())


KNOWN: list[tuple[str, list[Body], list[str]]] = [
    (
        RESPONSES,
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Done!"}]},
        ],
        ['"name": "apply_patch"', '{"input": "*** Begin"}', "Done!"],
    ),
    (
        RESPONSES,
        [
            {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c", "output": "a.txt"},
        ],
        ['"name": "local_shell"', '"command": ["ls"]', "a.txt"],
    ),
    (RESPONSES, [{"type": "web_search_call", "id": "w", "action": {"query": "RWKV"}}], ["web_search", '"RWKV"']),
    (
        RESPONSES,
        [{"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": "42"}],
        ['"name": "f"', "42"],
    ),
    (
        RESPONSES,
        [{"type": "code_interpreter_call", "code": "1+1", "outputs": [{"type": "logs", "logs": "two"}]}],
        ["code_interpreter", "1+1", "two"],
    ),
    (RESPONSES, [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}}], ['{"a": 1}']),
    (RESPONSES, [{"type": "reasoning", "content": [], "encrypted_content": "gAAA"}], []),
    (RESPONSES, [{"role": "assistant", "content": None}, {"role": "assistant"}], []),
    (
        MESSAGES,
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I search."},
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "RWKV"}},
                    {
                        "type": "web_search_tool_result",
                        "tool_use_id": "s",
                        "content": [{"type": "web_search_result", "title": "A page", "encrypted_content": "EqgB"}],
                    },
                    {"type": "text", "text": "I found."},
                ],
            }
        ],
        ["I search.", '"name": "web_search"', '"RWKV"', "A page", "I found."],
    ),
    (
        MESSAGES,
        [
            {
                "role": "user",
                "content": [{"type": "document", "title": "T", "source": {"type": "text", "data": "Plain"}}],
            },
            {"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": "Parts"}}]},
        ],
        ["T\nPlain", "Parts"],
    ),
    (
        CHAT,
        [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]}],
        ['{"a": 1}'],
    ),
    (
        CHAT,
        [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": {"a": 1}}}],
        ['{"a": 1}'],
    ),
    (
        CHAT,
        [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "g", "input": "x"}}]}],
        ['"name": "g"', '{"input": "x"}'],
    ),
    (CHAT, [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], ["No."]),
    (CHAT, [{"role": "function", "name": "f", "content": "found"}, {"role": "tool", "content": None}], ["found"]),
    (
        OLLAMA,
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}],
        ['{"a": 1}'],
    ),
    *(
        (path, [{"role": "assistant", "content": None, thoughts: "Hm."}], [])
        for path, thoughts in ((CHAT, "reasoning_content"), (CHAT, "reasoning"), (OLLAMA, "thinking"))
    ),
    *((CHAT, [{"role": "assistant", "reasoning_content": "Hm.", **content}], []) for content in ({}, {"content": ""})),
]


@pytest.mark.parametrize(("path", "history", "texts"), KNOWN)
async def test_what_is_known_is_read_as_text_in_its_order(
    serve: Serve, path: str, history: list[Body], texts: list[str]
) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    response = await client.post(path, json=chat(path, ASK, *history, ASK))
    assert response.status == 200, await response.text()
    assert "X-Left-Out" not in response.headers
    prompt = prompt_of(engine)
    places = [prompt.find(text) for text in texts]
    assert places == sorted(places), prompt
    assert -1 not in places, prompt
    assert "encrypted" not in prompt
    assert "EqgB" not in prompt


def parts_of(path: str, kind: str) -> Body:
    """Return a message's fields with a text and something without a text, of the type `kind`."""
    if path == OLLAMA:
        return {"content": "Look", "images": ["aGVsbG8="]}
    return {
        "content": [{"type": "text", "text": "Look"}, {"type": kind, "image_url": IMAGE, "source": {"type": "file"}}]
    }


UNREADABLE = [
    (CHAT, "image_url"), (CHAT, "file"), (CHAT, "hologram"), (RESPONSES, "input_image"), (RESPONSES, "input_file"),
    (RESPONSES, "hologram"), (MESSAGES, "image"), (MESSAGES, "document"), (MESSAGES, "hologram"), (OLLAMA, "images"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", [None, "", "{", "[1]", [1], 3, True, '{"a": 1}'])
async def test_calls_with_broken_arguments_do_not_stop_a_conversation(serve: Serve, arguments: object) -> None:
    client = await serve(FakeEngine())
    call = {"type": "tool_use", "id": "c", "name": "f", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "c", "content": None}
    function = {"function": {"name": "f", "arguments": arguments}}
    for body in (
        chat(MESSAGES, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}, ASK),
        chat(OLLAMA, {"role": "assistant", "content": "", "tool_calls": [function]}, ASK),
    ):
        response = await client.post(OLLAMA if "stream" in body else MESSAGES, json=body)
        assert response.status == 200, await response.text()


async def test_a_result_may_be_null(serve: Serve) -> None:
    client = await serve(FakeEngine())
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": None}
    assert (await client.post(RESPONSES, json=chat(RESPONSES, call, result, ASK))).status == 200


@pytest.mark.parametrize(("path", "kind"), UNREADABLE)
async def test_images_are_left_out_of_old_turns_and_refused_in_what_the_user_asks(
    serve: Serve, path: str, kind: str
) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    shown: Body = {"role": "user", **parts_of(path, kind)}
    answered: Body = {"role": "assistant", "content": "I see."}
    response = await client.post(path, json=chat(path, shown, answered, ASK))
    assert response.status == 200, await response.text()
    assert response.headers["X-Left-Out"].split(".")[-1] == kind
    assert "Look" in prompt_of(engine)
    assert "base64" not in prompt_of(engine)
    for asked in ([shown], [ASK, answered, shown], [ASK, answered, shown, ASK]):
        response = await client.post(path, json=chat(path, *asked))
        assert response.status == 400, asked
    strict = await serve(FakeEngine(), ServerSettings(strict=True))
    assert (await strict.post(path, json=chat(path, shown, answered, ASK))).status == 400


RESULTS: list[tuple[str, list[Body], str]] = [
    (CHAT, [{"role": "tool", "tool_call_id": "c", **parts_of(CHAT, "image_url")}], "image_url"),
    (OLLAMA, [{"role": "tool", **parts_of(OLLAMA, "images")}], "images"),
    (
        RESPONSES,
        [{"type": "function_call_output", "call_id": "c", "output": parts_of(RESPONSES, "input_image")["content"]}],
        "input_image",
    ),
    (
        MESSAGES,
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", **parts_of(MESSAGES, "image")}]}],
        "image",
    ),
]


@pytest.mark.parametrize(("path", "results", "kind"), RESULTS)
async def test_images_are_left_out_of_what_a_tool_returns(
    serve: Serve, path: str, results: list[Body], kind: str
) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    response = await client.post(path, json=chat(path, ASK, *results))
    assert response.status == 200, await response.text()
    assert response.headers["X-Left-Out"].split(".")[-1] == kind
    assert "Look" in prompt_of(engine)
    assert "base64" not in prompt_of(engine)


@pytest.mark.parametrize(
    ("path", "unknown", "name"),
    [
        (RESPONSES, {"type": "compaction", "encrypted_content": "gAAA"}, "input.compaction"),
        (RESPONSES, {"type": "hologram", "id": "h"}, "input.hologram"),
        (RESPONSES, {"type": "item_reference", "id": "rs_of_another_server"}, "input.item_reference"),
        (MESSAGES, {"role": "assistant", "content": [{"type": "hologram"}]}, "messages.content.hologram"),
        (CHAT, {"role": "assistant", "tool_calls": [{"type": "hologram"}]}, "messages.tool_calls.hologram"),
    ],
)
async def test_unknown_items_are_left_out_and_named(serve: Serve, path: str, unknown: Body, name: str) -> None:
    client = await serve(FakeEngine())
    response = await client.post(path, json=chat(path, ASK, unknown, ASK))
    assert (response.status, response.headers.get("X-Left-Out")) == (200, name), await response.text()
    strict = await serve(FakeEngine(), ServerSettings(strict=True))
    assert (await strict.post(path, json=chat(path, ASK, unknown, ASK))).status in (400, 404)


async def test_a_response_may_have_no_items(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    bodies: list[Body] = [{}, {"instructions": "Be brief."}, {"store": False}]
    for body in bodies:
        response = await client.post(RESPONSES, json={"input": [], **body, "max_output_tokens": 1})
        assert response.status == 200, await response.text()
    await error_of(await client.post(RESPONSES, json={"max_output_tokens": 1}), 400)


async def test_a_kept_conversation_takes_items_of_other_tools(serve: Serve) -> None:
    client = await serve(FakeEngine())
    items = [{"type": "web_search_call", "id": "w", "action": {"query": "a"}, "results": [{"text": "b"}]}, ASK]
    made = await (await client.post("/v1/conversations", json={"items": items})).json()
    listed = await (await client.get(f"/v1/conversations/{made['id']}/items")).json()
    assert sorted(item["type"] for item in listed["data"]) == ["function_call", "function_call_output", "message"]
    response = await client.post(RESPONSES, json={"conversation": made["id"], "input": "Hi"})
    assert response.status == 200, await response.text()
