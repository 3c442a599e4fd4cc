"""An answer has its text, its tokens and its error, whether it comes whole or as a stream."""

from __future__ import annotations

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from tools.live_server.asking import Answer, ask

USAGE = '"usage": {"completion_tokens": 2, "prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}'
PIECES = (
    '{"choices": [{"text": "a", "token_ids": [5]}]}',
    '{"choices": [{"delta": {"content": "b"}, "token_ids": [6]}]}',
)


async def asked(text: str, kind: str = "text/event-stream", status: int = 200) -> Answer:
    """Return what is made of an answer."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind, status=status)

    app = web.Application()
    app.router.add_post("/", handle)
    async with TestServer(app) as server, ClientSession() as session:
        return await ask(session, str(server.make_url("/")), {})


def stream(*events: str) -> str:
    return "".join(f"data: {event}\n\n" for event in events)


async def test_pieces_of_a_stream_are_joined() -> None:
    answer = await asked(stream(*PIECES, f'{{"choices": [], {USAGE}}}', "[DONE]"))
    assert (answer.text, answer.token_ids, len(answer.moments), answer.error) == ("ab", [5, 6], 2, None)
    assert (answer.tokens, answer.prompt_tokens, answer.cached_tokens) == (2, 3, 1)


async def test_a_whole_answer_is_one_piece() -> None:
    answer = await asked(f'{{"choices": [{{"message": {{"content": "ab"}}}}], {USAGE}}}', "application/json")
    assert (answer.text, len(answer.moments), answer.cached_tokens, answer.error) == ("ab", 1, 1, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (stream(PIECES[0]), "the stream ended without [DONE]"),
        (stream(PIECES[0], '{"error": {"message": "the device failed"}}'), "the device failed"),
    ],
)
async def test_a_stream_that_breaks_off_has_the_reason(text: str, message: str) -> None:
    answer = await asked(text)
    assert answer.text == "a"
    assert answer.error == {"message": message}


async def test_a_refusal_is_an_error() -> None:
    refused = await asked('{"error": {"message": "full"}}', "application/json", 503)
    assert (refused.status, refused.error, refused.moments) == (503, {"message": "full"}, [])
    assert (await asked("{}", "application/json", 429)).error == {"message": "status 429"}
