"""Errors apart from the body's fields: routes, sizes, keys, and an engine that is full, failing or closing."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import logging
import threading
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import ClientResponse
from aiohttp.compression_utils import ZLibDecompressor
from yarl import URL

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError, StateError, TokenizerError
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.errors import describe
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from rnn_engine_server.openapi.document import plain_path
from tests.support.fake_engine import FakeEngine
from tests.support.http import Client, Serve, error_of, parse_event

TEXT = {"prompt": "a"}


async def send(client: Client, method: str, path: str, **fields: Any) -> ClientResponse:  # noqa: ANN401
    """Send a request with `path` as it is, which may begin with two slashes."""
    response = await client.session.request(
        method, URL(f"{client.make_url('/').origin()}{path}", encoded=True), **fields
    )
    await response.read()
    return response


@pytest.mark.parametrize("path", ["/v2", "/v2/x", "/" + "models/" * 9, "/v1/" + "x" * 300])
async def test_unknown_route(serve: Serve, path: str) -> None:
    response = await send(await serve(FakeEngine()), "GET", path)
    assert (await error_of(response, 404))["message"] == f"there is no route GET {unquote(path)}"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/Chat/completionss/", "/v1/chat/completions"),
        ("/V1/models", "/v1/models"),
        ("/v1/chat_completions", "/v1/chat/completions"),
        ("/v1/fils/file-1/contents", "/v1/files/file-1/content"),
        ("/v1/model/a%2Fb", "/v1/models/a%2Fb"),
        ("/api/generat", "/api/generate"),
    ],
)
async def test_a_misspelled_route(serve: Serve, path: str, meant: str) -> None:
    response = await send(await serve(FakeEngine()), "GET", path)
    assert (await error_of(response, 404))["message"].endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize(
    ("path", "meant", "base"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions", "/v1"),
        ("/v1/v1/models/fake", "/v1/models/fake", "/v1"),
        ("/api/v1/chat/completions", "/v1/chat/completions", "/v1"),
        ("/api/v1/messages", "/v1/messages", "/v1"),
        ("/openai/chat/completions", "/v1/chat/completions", "/v1"),
        ("/v1/openai/v1/models/", "/v1/models", "/v1"),
        ("/openai/openai/v1//models", "/v1/models", "/v1"),
        ("/v2/models", "/v1/models", "/v1"),
        ("/llm/v1/models", "/v1/models", "/v1"),
        ("/conversations", "/v1/conversations", "/v1"),
        ("/v1/api/chat", "/api/chat", ""),
        ("/api/api/tags", "/api/tags", ""),
        ("/v1/slots", "/slots", ""),
        ("/tags", "/api/tags", ""),
    ],
)
async def test_a_wrong_base_address(serve: Serve, path: str, meant: str, base: str) -> None:
    client = await serve(FakeEngine())
    message = (await error_of(await send(client, "GET", path), 404))["message"]
    expected = f"; did you mean {meant}? Then the base address is {client.make_url('/').origin()}{base}"
    assert expected in message
    assert message.endswith(" if the client adds /v1/ itself" if base else expected)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions/",
        "//v1/completions",
        "/v1//completions",
        "///v1///completions///",
        "/openai//v1/completions/",
        "/completion/",
        "/api//generate/",
        "/api/v1/generate/",
        "/generate//",
    ],
)
async def test_slashes_too_many(serve: Serve, path: str) -> None:
    client = await serve(FakeEngine())
    response = await send(client, "POST", path, json={"prompt": "a", "inputs": "a"}, allow_redirects=False)
    assert response.status == 200, await response.text()
    response = await send(client, "PUT", path)
    assert "POST" in response.headers["Allow"]
    assert "takes POST, not PUT" in (await response.text())


async def test_slashes_about_names(serve: Serve) -> None:
    client = await serve(FakeEngine())
    paths = ("/v1/models/fake/", "/v1//models/fake", "//v1/models//fake//", "/health/", "//", "/web//main.js")
    for path in paths:
        assert (await send(client, "GET", path)).status == 200, path
    assert "'a//b/'" in (await (await send(client, "GET", "/v1/models/a%2F%2Fb%2F")).text())


async def test_a_root_path(serve: Serve) -> None:
    keys = (ApiKey.of("use", "ann", Scope.USE),)
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(keys), root_path="/a/llm"))
    headers = {"Authorization": "Bearer use"}
    for path in ("/a/llm/v1/models", "/a//llm/v1/models/", "/v1/models", "/a/llm/", "/a/llm/docs"):
        assert (await send(client, "GET", path, headers=headers)).status == 200, path
        assert (await send(client, "GET", path)).status == (401 if "models" in path else 200)
    page = await send(client, "GET", "/a/llm", allow_redirects=False)
    assert (page.status, page.headers["Location"]) == (308, "llm/")
    for path in ("/a/llmv1/models", "/a/v1/models", "/llm/v1/models", "/a/llm/a/llm/v1/models"):
        assert "/v1/models" in (await error_of(await send(client, "GET", path, headers=headers), 404))["message"]
    assert (await send(client, "DELETE", "/a/llm/v1/cache", headers=headers)).status == 403
    for root_path in ("llm", "/llm/", "/", "/a b", "/a//b"):
        with pytest.raises(InvalidRequestError, match=r"root_path: .* is not allowed; expected a path such as /llm"):
            ServerSettings(root_path=root_path)


async def test_slashes_are_no_way_round_keys_and_scopes(serve: Serve) -> None:
    keys = (ApiKey.of("use", "ann", Scope.USE), ApiKey.of("admin", "bob", Scope.ADMIN))
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(keys)))
    for route in ALL_ROUTES:
        path = plain_path(route.path).replace("{", "").replace("}", "")
        if route.path != "/" and not route.always:
            for sent in (path, f"{path}/", f"/{path}", f"{path[0]}/{path[1:]}//"):
                assert (await send(client, route.method, sent)).status == 401, sent
                if route.scope is not Scope.USE:
                    headers = {"Authorization": "Bearer use"}
                    assert (await send(client, route.method, sent, headers=headers)).status == 403, sent
    for path in ("/admin/models/unload", "//admin//models/unload/"):
        assert (await send(client, "GET", f"{path}?admin_token=admin")).status != 401
    assert (await client.get("/v1/models//", params={"admin_token": "admin"})).status == 401


async def test_unknown_model(serve: Serve) -> None:
    error = await error_of(await (await serve(FakeEngine())).get("/v1/models/gpt-4"), 404)
    assert error["code"] == "model_not_found"
    assert "'gpt-4'" in error["message"]
    assert "'fake'" in error["message"]


async def test_wrong_method(serve: Serve) -> None:
    response = await (await serve(FakeEngine())).get("/v1/completions")
    error = await error_of(response, 405)
    assert error["message"] == "/v1/completions takes POST, not GET"
    assert response.headers["Allow"] == "POST"


async def test_body_beyond_the_limit(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_body_bytes=100)))
    assert (await client.post("/v1/completions", json={"prompt": "a" * 50})).status == 200
    error = await error_of(await client.post("/v1/completions", json={"prompt": "a" * 100}), 413)
    assert error["message"] == "the body has 114 bytes; expected at most 100"


def _raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


@pytest.mark.parametrize(
    ("coding", "compress"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("gzip", lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:])),
        ("deflate", zlib.compress),
        ("deflate", _raw_deflate),
        ("identity", bytes),
        ("identity, gzip", gzip.compress),
        (" ", bytes),
    ],
)
@pytest.mark.parametrize("count", [1, 200_000])
async def test_compressed_body(serve: Serve, coding: str, compress: Callable[[bytes], bytes], count: int) -> None:
    client = await serve(FakeEngine())
    body = compress(b'{"user": "' + b"a" * count + b'", "prompt": "a"}')
    assert (await client.post("/v1/completions", data=body, headers={"Content-Encoding": coding})).status == 200


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "x-foo", "gzip, deflate", "gzip, gzip", "\u00e9"])
async def test_codings_that_are_not_known(serve: Serve, coding: str) -> None:
    client = await serve(FakeEngine())
    for path in ("/v1/completions", "/v1/files"):
        headers = {"Content-Encoding": coding, "Content-Type": "multipart/form-data; boundary=b"}
        response = await client.post(path, data=b'{"prompt": "a"}', headers=headers)
        message = (await error_of(response, 415))["message"]
        assert "expected 'gzip', 'deflate' or" in message
        assert response.headers["Accept-Encoding"] == "gzip, deflate"
    assert (await client.post("/v1/completions", json=TEXT)).status == 200


async def test_a_byte_order_mark_is_skipped(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for path, body in (
        ("/v1/completions", TEXT),
        ("/v1/responses", {"input": "a"}),
        ("/api/generate", TEXT),
        ("/tokenize", {"content": "a"}),
    ):
        response = await client.post(path, data=codecs.BOM_UTF8 + json.dumps(body).encode())
        assert response.status == 200, await response.text()


async def test_a_refused_body_is_not_decoded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    decode = ZLibDecompressor.decompress_sync

    def noted(self: ZLibDecompressor, data: bytes, most: int) -> bytes:
        threads.append(threading.current_thread())
        return decode(self, data, most)

    monkeypatch.setattr(ZLibDecompressor, "decompress_sync", noted)
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings((ApiKey.of("key", "ann"),))))
    headers = {"Content-Encoding": "gzip"}
    body = gzip.compress(b'{"prompt": "a", "user": "' + b"a" * 1_000_000 + b'"}')
    assert (await client.post("/v1/completions", data=body, headers=headers)).status == 401
    assert (await client.post("/v1/nothing", data=body, headers=headers)).status == 401
    assert threads == []
    headers["Authorization"] = "Bearer key"
    assert (await client.post("/v1/completions", data=body, headers=headers)).status == 200
    assert len(threads) > 10
    assert threading.current_thread() not in threads[1:]


async def test_body_that_is_not_compressed_as_it_says(serve: Serve) -> None:
    client = await serve(FakeEngine())
    response = await client.post("/v1/completions", data=b"hello", headers={"Content-Encoding": "gzip"})
    assert "its Content-Encoding: gzip" in (await error_of(response, 400))["message"]
    assert (await client.post("/v1/completions", json=TEXT)).status == 200


async def test_compressed_body_beyond_the_limit(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_body_bytes=1000)))
    body = gzip.compress(b'{"prompt": "' + b"a" * 1_000_000 + b'"}')
    await error_of(await client.post("/v1/completions", data=body, headers={"Content-Encoding": "gzip"}), 413)


async def test_megabytes_are_taken(serve: Serve) -> None:
    client = await serve(FakeEngine())
    body = io.BytesIO(b'{"user": "' + b"a" * 1_500_000 + b'", "prompt": "' + b"a" * 1_000_000 + b'"}')
    assert (await client.post("/v1/completions", data=body)).status == 200


async def test_full_queue(serve: Serve) -> None:
    engine = FakeEngine(refuse=OverloadedError("64 requests wait", retry_after=1.25))
    response = await (await serve(engine)).post("/v1/completions", json=TEXT)
    error = await error_of(response, 429)
    assert error["message"] == "64 requests wait"
    assert response.headers["Retry-After"] == "2"
    assert response.headers["Retry-After-Ms"] == "1250"


@pytest.mark.parametrize("stream", [False, True])
async def test_closed_engine(serve: Serve, stream: bool) -> None:
    engine = FakeEngine(closed=True)
    error = await error_of(await (await serve(engine)).post("/v1/completions", json={**TEXT, "stream": stream}), 503)
    assert error["type"] == "server_error"


@pytest.mark.parametrize(("fault", "words"), [({"fail_at": 2}, "device"), ({"vanish_at": 2}, "early")])
async def test_failure_of_a_whole_answer(serve: Serve, fault: dict[str, Any], words: str) -> None:
    engine = FakeEngine(**fault)
    error = await error_of(await (await serve(engine)).post("/v1/completions", json=TEXT), 500)
    assert error["code"] == "step_failed"
    assert words in error["message"]
    assert engine.active == 0


@pytest.mark.parametrize("fault", [{"fail_at": 2}, {"vanish_at": 2}])
async def test_failure_of_a_stream_is_its_last_event(serve: Serve, fault: dict[str, Any]) -> None:
    response = await (await serve(FakeEngine(**fault))).post("/v1/completions", json={**TEXT, "stream": True})
    assert response.status == 200
    *frames, last, nothing = (await response.text()).split("\n\n")
    assert nothing == ""
    assert "".join(parse_event(frame)["choices"][0]["text"] for frame in frames) == " H"
    assert parse_event(last)["error"]["code"] == "step_failed"


async def test_one_failing_choice_leaves_the_others_no_slot(serve: Serve) -> None:
    def reply(request: GenerateRequest) -> str:
        return "x" * 1000 if request.prompt[0] == 1 else "\udcff"  # a text that can't be encoded

    engine = FakeEngine(reply=reply)
    response = await (await serve(engine)).post("/v1/completions", json={"prompt": [[1], [2]], "max_tokens": 1000})
    assert (await error_of(response, 500))["code"] == "internal_error"
    assert engine.active == 0


async def test_unforeseen_error_is_logged_and_keeps_its_details(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def reply(_: GenerateRequest) -> str:
        raise KeyError("a secret")

    with caplog.at_level(logging.ERROR):
        response = await (await serve(FakeEngine(reply=reply))).post("/v1/completions", json=TEXT)
        error = await error_of(response, 500)
    assert "secret" not in error["message"]
    assert "a secret" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"), [(StateError("s"), 400), (TokenizerError("t"), 400), (NotFoundError("n"), 404)]
)
def test_statuses_of_other_exceptions(error: Exception, status: int) -> None:
    assert describe(error).status == status


async def test_server_goes_on_after_errors(serve: Serve) -> None:
    engine = FakeEngine(fail_at=2)
    client = await serve(engine)
    assert (await client.post("/v1/completions", json=TEXT)).status == 500
    engine.fail_at = None
    assert (await client.post("/v1/completions", json=TEXT)).status == 200
