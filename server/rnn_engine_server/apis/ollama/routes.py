"""Ollama's API: chats, generations, embeddings, information about models, and a model of the Hugging Face Hub."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rnn_engine.chat_template.answer import AnswerPart, Piece, whole_calls
from rnn_engine.errors import ForbiddenError, InvalidRequestError
from rnn_engine.hub import Wanted
from rnn_engine.interface import EngineInfo
from rnn_engine.requests import Event, Finished, TextDelta
from rnn_engine_server.apis.common.answering import Dialect, Outcome, Prepared
from rnn_engine_server.apis.common.messages import call_arguments
from rnn_engine_server.apis.ollama.schemas import (
    Embedded,
    EmbedRequest,
    OlderEmbedded,
    OlderEmbedRequest,
    OllamaCalledFunction,
    OllamaChat,
    OllamaChatRequest,
    OllamaDetails,
    OllamaError,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaModel,
    OllamaModelFacts,
    OllamaModels,
    OllamaText,
    OllamaVersion,
    PullRequest,
    PullStatus,
    ShowRequest,
)
from rnn_engine_server.apis.openai.chat import prepare_chat
from rnn_engine_server.apis.openai.completions import prepare_completions
from rnn_engine_server.apis.openai.embeddings import find_vectors
from rnn_engine_server.apis.openai.schemas import ChatRequest, CompletionRequest
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core import handlers
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure, RefusalError
from rnn_engine_server.core.handlers import LINES, Answer, Encoded, Long, RouteTable, Stream
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.models.orders import LoadOrder, folder_of
from rnn_engine_server.models.registry import MODELS, ServedModel

if TYPE_CHECKING:
    from rnn_engine.hub.download import Download, Hub

AnswerKind: TypeAlias = Literal["message", "response"]


class OllamaDialect(Dialect[ChatRequest | CompletionRequest]):
    """Formats the answers of Ollama's chats and generations, whole or as streams of lines.

    Chats have the field `message`, generations `response`.
    """

    stream_form = LINES

    def __init__(self, prepared: Prepared[ChatRequest | CompletionRequest], kind: AnswerKind) -> None:
        super().__init__(prepared)
        self._kind = kind
        self._call: list[str] = []  # the name of the call that has begun, and the pieces of its arguments
        [self._reader], [self._outcome] = self.readers, self.outcomes

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Mapping[str, object]:  # noqa: ARG002
        pieces = [*self._reader.feed(self._outcome.text), *self._reader.finish()]
        said = self._said(whole_calls(self._reader, pieces), last=True)
        return {**self._line(said), **_end(self._outcome), **extra}

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterator[handlers.Event]:  # noqa: ARG002
        match event:
            case TextDelta():
                if said := self._said(self._reader.feed(event.text), last=False):
                    yield self._line(said)
            case Finished():
                if said := self._said(self._reader.finish(), last=not self._reader.is_in_call):
                    yield self._line(said)
                yield {**self._line({}), **_end(self._outcome), **extra}

    def keep_alive(self) -> handlers.Event:
        """Return a line of a stream that adds nothing to the answer."""
        return self._line({})

    def _said(self, pieces: Sequence[Piece], *, last: bool) -> dict[str, Any]:
        """Return the message fields made of the next pieces of the answer: text, thoughts and completed calls.

        `last` means that the last call is complete.
        """
        said: dict[str, Any] = {}
        for piece in pieces:
            match piece.part:
                case AnswerPart.CONTENT:
                    said["content"] = said.get("content", "") + piece.text
                case AnswerPart.REASONING:
                    said["thinking"] = said.get("thinking", "") + piece.text
                case AnswerPart.ARGUMENTS:
                    self._call.append(piece.text)
            if piece.part is not AnswerPart.ARGUMENTS:
                self._tell_call(said)
            if piece.part is AnswerPart.CALL:
                self._call = [piece.text]
        if last:
            self._tell_call(said)
        return said

    def _tell_call(self, said: dict[str, Any]) -> None:
        if self._call:
            name, *arguments = self._call
            function: OllamaCalledFunction = {"name": name, "arguments": call_arguments("".join(arguments))}
            said.setdefault("tool_calls", []).append({"id": f"call_{uuid.uuid4().hex[:8]}", "function": function})
            self._call = []

    def _line(self, said: Mapping[str, Any]) -> dict[str, object]:
        return _line(self.engine.info, self._kind, said)


def _line(info: EngineInfo, kind: AnswerKind, said: Mapping[str, Any]) -> dict[str, object]:
    line: dict[str, object] = {"model": info.model, "created_at": timestamp(time.time()), "done": False}
    if kind == "message":
        return {**line, "message": {"role": "assistant", "content": "", **said}}
    thoughts = {"thinking": said["thinking"]} if "thinking" in said else {}
    return {**line, "response": said.get("content", ""), **thoughts}


def _end(outcome: Outcome) -> Mapping[str, object]:
    """Return the fields of an answer's last line: why it ended, token counts, and times if they were measured."""
    timing, ended = None if outcome.started is None else outcome.started.timing, outcome.ended
    durations = {}
    if timing is not None:
        durations = {
            "total_duration": _nanoseconds(ended - timing.arrived),
            "load_duration": 0,
            "prompt_eval_duration": _nanoseconds(timing.first_token - timing.started),
            "eval_duration": _nanoseconds(ended - timing.first_token),
        }
    return {
        "done": True,
        "done_reason": outcome.end.reason,
        "prompt_eval_count": outcome.prompt_tokens,
        "eval_count": outcome.num_tokens,
        **durations,
    }


def _nanoseconds(seconds: float) -> int:
    return max(round(seconds * 1e9), 0)


def timestamp(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as text in the form that Ollama has."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ollama_error(failure: Failure) -> tuple[int, OllamaError]:
    """Return the HTTP status and the body of an error in Ollama's form."""
    return failure.status, {"error": failure.message}


_NEVER = "9999-12-31T23:59:59Z"


def ollama_model(model: ServedModel, info: EngineInfo) -> OllamaModel:
    """Return a model's entry in the list of all models.

    Its digest is computed from the model's properties, not from its file.
    """
    facts = repr((info.model, info.shape, info.weights, info.loras))
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": timestamp(info.created),
        "size": info.device_bytes or 0,
        "digest": hashlib.sha256(facts.encode()).hexdigest(),
        "details": _details(info),
    }


def running_model(model: ServedModel, info: EngineInfo, idle_unload_seconds: float | None) -> OllamaModel:
    """Return a model's entry in the list of loaded models.

    It has the time when the model is freed if it stays unused.
    """
    expires = _NEVER
    if idle_unload_seconds is not None:
        expires = timestamp(time.time() + idle_unload_seconds - model.idle_seconds(time.monotonic()))
    return {**ollama_model(model, info), "size_vram": info.device_bytes or 0, "expires_at": expires}


def _family(info: EngineInfo) -> str:
    return f"rwkv{info.shape.version.removeprefix('v')}"


def _details(info: EngineInfo) -> OllamaDetails:
    family = _family(info)
    return {
        "parent_model": "",
        "format": "rwkv",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": next(iter(info.blocks), info.weights),
    }


# The routes of Ollama's API.

_VERSION = "0.12.0"


ROUTES = RouteTable(error_form=ollama_error)


@ROUTES.post("/api/chat", answer=OllamaChat, chunk=OllamaChat, stream_type=LINES.content_type)
async def chat(call: Call, body: OllamaChatRequest) -> Answer:
    """Continue a conversation, as Ollama does. Errors of all of its routes have Ollama's form, too."""
    return await _answer(call, body, "message")


@ROUTES.post("/api/generate", answer=OllamaText, chunk=OllamaText, stream_type=LINES.content_type)
async def generate(call: Call, body: OllamaGenerateRequest) -> Answer:
    """Answer or continue a text, as Ollama does."""
    return await _answer(call, body, "response")


async def _answer(call: Call, body: OllamaGeneration, kind: AnswerKind) -> Answer:
    translated = body.translated
    if translated is None:  # the request only asks to load the model, which is loaded by now
        answer = {**_line(call.engine.info, kind, {}), "done": True, "done_reason": "load"}
        return Encoded(LINES.encode([answer]), LINES.content_type) if body.stream else Encoded.of(answer)
    prepared: Prepared[ChatRequest | CompletionRequest]
    if isinstance(translated, CompletionRequest):
        prepared = await prepare_completions(call, translated)
    else:
        prepared = await prepare_chat(call, translated)
    return await OllamaDialect(prepared, kind).answer()


@ROUTES.post("/api/embed")
async def embed(call: Call, body: EmbedRequest) -> Long[Embedded]:
    """Vectors of texts, in Ollama's form."""
    begun = time.monotonic_ns()
    found = await find_vectors(call, body)

    return Long(
        found.num_numbers,
        lambda: {
            "model": found.model,
            "embeddings": [one.vector.tolist() for one in found.embeddings],
            "total_duration": time.monotonic_ns() - begun,
            "load_duration": 0,
            "prompt_eval_count": sum(cost.prompt_tokens for cost in found.costs),
        },
    )


@ROUTES.post("/api/embeddings")
async def older_embed(call: Call, body: OlderEmbedRequest) -> Long[OlderEmbedded]:
    """The vector of one text, for older clients of Ollama."""
    if len(body.input) != 1:
        raise InvalidRequestError("prompt", len(body.input), "one text")
    [one] = (await find_vectors(call, body)).embeddings
    return Long(one.vector.size, lambda: {"embedding": one.vector.tolist()})


@ROUTES.get("/api/tags", uses_model=False)
async def tags(call: Call) -> OllamaModels:
    """The models that are served, in Ollama's form."""
    models = [ollama_model(model, model.info) for model in call.app[MODELS] if model.info is not None]
    return {"models": models}


@ROUTES.get("/api/ps", uses_model=False)
async def ps(call: Call) -> OllamaModels:
    """The models that are loaded, in Ollama's form."""
    seconds = call.app[SETTINGS].idle_unload_seconds
    models = [
        running_model(model, model.info, seconds)
        for model in call.app[MODELS]
        if model.info is not None and model.status == "loaded"
    ]
    return {"models": models}


@ROUTES.post("/api/show")
async def show(call: Call, _body: ShowRequest) -> OllamaModelFacts:
    """Details of a model, in Ollama's form."""
    info = call.engine.info
    family, source = _family(info), info.chat_template.source
    sizes = {f"{family}.{name}": size for name, size in info.shape.sizes.items()}
    return {
        "modelfile": f"FROM {info.model}",
        "parameters": "",
        "template": source if isinstance(source, str) else json.dumps(source, ensure_ascii=False),
        "details": _details(info),
        "model_info": {
            "general.architecture": family,
            "general.basename": info.model,
            f"{family}.context_length": call.limits.max_prompt_tokens,  # since a state has no fixed context
            f"{family}.embedding_length": info.shape.sizes["width"],
            f"{family}.block_count": info.shape.sizes["num_layers"],
            **sizes,
        },
        "capabilities": ["completion", "tools", "thinking", "embedding"] if info.embedding is None else ["embedding"],
        "modified_at": timestamp(info.created),
    }


@ROUTES.get("/api/version", uses_model=False)
async def version(_call: Call) -> OllamaVersion:
    """The version of Ollama whose API this is."""
    return {"version": _VERSION}


_REASON = (
    "rnn-engine makes and moves no models through Ollama's API; /api/pull fetches one, and its operator names others "
    "where the server is started, or with POST /admin/models/load"
)

LIBRARY_ROUTES = RouteTable(answer=OllamaError, uses_model=False, error_form=ollama_error)


@LIBRARY_ROUTES.post("/api/push")
@LIBRARY_ROUTES.post("/api/create")
@LIBRARY_ROUTES.post("/api/copy")
@LIBRARY_ROUTES.delete("/api/delete")
@LIBRARY_ROUTES.post("/api/blobs/{digest}")
async def refuse(_call: Call) -> Answer:
    """Refused with 501 and the reason: no model is made, moved or deleted through Ollama's API."""
    raise RefusalError(501, _REASON)


# Fetch a model: here from the Hugging Face Hub into the folder of models, for admins.

_LOOK_SECONDS = 0.5  # between two reports on a file
_FIRST: PullStatus = {"status": "pulling manifest"}
"""What is sent while there is no report yet."""


@ROUTES.post("/api/pull", answer=PullStatus, chunk=PullStatus, stream_type=LINES.content_type, uses_model=False)
async def pull(call: Call, body: PullRequest) -> Answer:
    """Fetch a model from the Hugging Face Hub into the folder of models (`--model-folder`), load it, and serve it.

    It is served under the name in the request. An API key needs the scope `admin` for it. If the model is served
    already, the answer is `success` for any key.
    """
    lines, last = _pull(call, body.model), _FIRST
    if not body.stream:
        async with aclosing(lines):
            return Encoded.of([line async for line in lines][-1])

    async def pieces() -> AsyncGenerator[list[handlers.Event], None]:
        nonlocal last
        async with aclosing(lines):
            async for last in lines:
                yield [last]

    return Stream(pieces(), LINES, lambda: last)


async def _pull(call: Call, name: str) -> AsyncGenerator[PullStatus, None]:
    """Fetch the model called `name`, serve it under this name, and yield reports on it; nothing if it is served.

    Raises ForbiddenError unless the client is an admin, NotFoundError if there is no folder of models, and ModelError
    if the model can't be fetched.
    """
    models = call.app[MODELS]
    if all(model.name != name for model in models):
        if call.principal.scope is not Scope.ADMIN:
            raise ForbiddenError(
                f"the model {name[:200]!r} is not served, and only an API key with the scope 'admin' may fetch one; "
                "the operator can run `rnn-engine pull`"
            )
        from rnn_engine.hub.download import Hub

        hub = Hub(shows_progress=False, folder=folder_of(call.app[SETTINGS]).path)
        download = await asyncio.to_thread(hub.plan, Wanted.parse(name))
        yield _FIRST
        fetching = _fetch(hub, download)
        while not fetching.done():
            for line in _progress(download):
                yield line
            await asyncio.wait((fetching,), timeout=_LOOK_SECONDS)
        path = fetching.result()
        yield {"status": "loading the model"}
        await models.put(LoadOrder(name, path))
    yield {"status": "success"}


def _progress(download: Download) -> Iterator[PullStatus]:
    """Yield a report on each file of which some bytes are here."""
    for file in download.files:
        if done := download.num_done(file):
            kind = "sha256" if len(file.digest) == 64 else "sha1"
            yield {
                "status": f"pulling {file.digest[:12]}",
                "digest": f"{kind}:{file.digest}",
                "total": file.num_bytes,
                "completed": min(done, file.num_bytes),
            }


def _fetch(hub: Hub, download: Download) -> asyncio.Future[Path]:
    """Download files on a thread that does not keep the process from ending, and return the path to open.

    The thread goes on if the client leaves. What it has downloaded is kept for the next request.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Path] = loop.create_future()
    future.add_done_callback(lambda done: done.exception())  # seen, even if nobody waits any more

    def run() -> None:
        try:
            settle = partial(future.set_result, hub.fetch(download))
        except Exception as error:
            settle = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the server has stopped
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name="rnn-engine pull", daemon=True).start()
    return future
