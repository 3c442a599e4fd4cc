"""OpenAI's files: uploaded for jobs, listed, read and deleted, each by the API key that made it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.message import Message
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, get_args

from aiohttp import content_disposition_filename, hdrs, parse_content_disposition
from aiohttp.http import HeadersParser
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, check_text
from rnn_engine_server.apis.common.owned import Deleted, PageOf, delete_own, own, own_page, page_query
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import body_pieces, query_word, to_json
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.handlers import RouteTable, Stream
from rnn_engine_server.core.routing import FORM, AppKey
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.store.files import FilePurpose, Files, NewFile, StoredFile, UploadPurpose

FILES = AppKey("files", Files)
"""The files of all API keys."""

_DEFAULT_LIFETIMES = {"batch": 30 * 24 * 3600.0}  # seconds, by purpose, as OpenAI has it; others never expire
_SENT_BYTES = 1 << 18  # of a file's content, likewise
_FORM_BYTES = 1 << 16  # of the form besides the file
_FIELD_BYTES = 1 << 12  # of one other field, and of the head of a field
_LINE_BYTES = 256  # of the line of a boundary
_MOST_BOUNDARY = 70  # characters, as RFC 2046 has it
_MOST_FIELDS = 16
_MOST_NAME = 255  # characters
_MOST_LISTED = 10_000


class ExpiresAfter(RequestBody):
    """When a file expires."""

    anchor: Literal["created_at"] = Field(description="The moment from which the seconds count.")
    seconds: int = Field(ge=3600, le=2_592_000, description="After how many seconds: an hour to 30 days.")


class FileUpload(RequestBody):
    """The form of an upload. In a form, `expires_after` is two fields, `expires_after[anchor]` and
    `expires_after[seconds]`."""

    file: Annotated[str, Field(min_length=1, max_length=_MOST_NAME, json_schema_extra={"format": "binary"})] = Field(
        description="The file, with its name."
    )
    purpose: UploadPurpose = Field(description="What the file is for.")
    expires_after: ExpiresAfter | None = Field(
        default=None, description="When the file is deleted. By default after 30 days if it is for a batch, else never."
    )


class FileObject(TypedDict):
    """A file, as OpenAI describes one, with the SHA-256 of its content."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: NotRequired[int]
    filename: str
    purpose: FilePurpose
    status: Literal["processed"]
    sha256: str


def file_object(stored: StoredFile) -> FileObject:
    """Return a file in OpenAI's form."""
    answer: FileObject = {
        "id": stored.id,
        "object": "file",
        "bytes": stored.num_bytes,
        "created_at": int(stored.created),
        "filename": stored.filename,
        "purpose": stored.purpose,
        "status": "processed",
        "sha256": stored.sha256,
    }
    if stored.expires is not None:
        answer["expires_at"] = int(stored.expires)
    return answer


ROUTES = RouteTable(uses_model=False)


@ROUTES.post("/v1/files", form=FileUpload, scope=Scope.MANAGE)
async def upload(call: Call) -> FileObject:
    """Upload a file for a job."""
    _check_form(call)
    async with call.app[FILES].create(call.principal.name) as new:
        body = await _read_form(call, new)
        lifetime = _DEFAULT_LIFETIMES.get(body.purpose) if body.expires_after is None else body.expires_after.seconds
        new.describe(body.file, body.purpose, lifetime)
    assert new.stored is not None
    return file_object(new.stored)


_PURPOSE_QUERY = {"purpose": "Return only files with this purpose."}


@ROUTES.get("/v1/files", query=_PURPOSE_QUERY | page_query("files", _MOST_LISTED, _MOST_LISTED))
async def list_files(call: Call) -> PageOf[FileObject]:
    """The files of the API key, or for an operator those of another one or of all."""
    find = partial(call.app[FILES].page, purpose=query_word(call, "purpose", get_args(FilePurpose), None))
    return await own_page(call, find, file_object, _MOST_LISTED, _MOST_LISTED)


@ROUTES.get("/v1/files/{id}")
async def get_file(call: Call) -> FileObject:
    """What a file is."""
    return file_object(await own(call, call.app[FILES].get))


@ROUTES.get("/v1/files/{id}/content", answer=None, content_type="application/octet-stream")
async def get_content(call: Call) -> Stream:
    """The content of a file."""
    stored = await own(call, call.app[FILES].get)
    files = call.app[FILES]

    async def pieces() -> AsyncGenerator[bytes, None]:
        async with files.open_content(stored) as file:
            # aiohttp's FileResponse sends a file without a look at how fast the client reads, and by the event loop
            while piece := await asyncio.to_thread(file.read, _SENT_BYTES):
                yield piece

    headers = {"Content-Disposition": "attachment"}
    return Stream(pieces(), content_type="application/octet-stream", headers=headers, num_bytes=stored.num_bytes)


@ROUTES.delete("/v1/files/{id}", scope=Scope.MANAGE)
async def delete_file(call: Call) -> Deleted:
    """Delete a file."""
    return await delete_own(call, call.app[FILES].delete, "file")


# The form of an upload is read part by part, in any order of its fields, and the file is written as it comes.


def _check_form(call: Call) -> None:
    """Raise InvalidRequestError unless the body is a form, and RefusalError if it is longer than allowed."""
    request = call.request
    if request.content_type != FORM:
        raise InvalidRequestError("content-type", request.content_type, f"{FORM}, a form with `file` and `purpose`")
    if request.content_length is not None:
        _check_size(call, request.content_length - _FORM_BYTES)


def _check_size(call: Call, num_bytes: int) -> None:
    most = call.limits.max_file_bytes
    if num_bytes > most:
        found = f"file: the file has {num_bytes} bytes or more"
        raise RefusalError(413, f"{found}; expected at most {most} (max_file_bytes)")


async def _read_form(call: Call, new: NewFile) -> FileUpload:
    """Read and check the form, and write the content of its file to `new`. Raises InvalidRequestError."""
    fields: dict[str, Any] = {}
    most = call.limits.max_file_bytes + _FORM_BYTES
    body = _MarkedText(body_pieces(call, most))
    end = b"--" + _boundary(call)
    if await body.line() != end:
        raise _not_a_form("another first line", f"'--' and the boundary of {hdrs.CONTENT_TYPE}")
    while True:
        name, filename = await _read_head(body)
        if name in fields or len(fields) == _MOST_FIELDS:
            raise InvalidRequestError(name, "another one", "each field once")
        content = body.until(b"\r\n" + end)
        if name == "file":
            fields[name] = filename
            async for piece in content:
                _check_size(call, new.num_bytes + len(piece))
                await new.write(piece)
        else:
            fields[name] = _decoded(name, await _joined(content, name, _FIELD_BYTES))
        rest = await body.line()
        if rest == b"--":
            break
        if rest:
            raise _not_a_form(rest.decode(errors="replace"), "the end of the line after the boundary")
    return FileUpload.parse(to_json(_nested(fields)), call.limits)


class _MarkedText:
    """The text of a body, read up to marks in it. Raises InvalidRequestError if the body ends before a mark."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces
        self._unread = bytearray()

    async def until(self, mark: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the bytes up to the next `mark`, which is skipped, piece by piece."""
        while (found := self._unread.find(mark)) < 0:
            if (safe := len(self._unread) - len(mark) + 1) > 0:
                yield bytes(self._unread[:safe])
                del self._unread[:safe]
            try:
                self._unread += await anext(self._pieces)
            except StopAsyncIteration:
                raise _not_a_form("an end within a field", "the boundary and '--' at the end") from None
        yield bytes(self._unread[:found])
        del self._unread[: found + len(mark)]

    async def line(self) -> bytes:
        """Return the rest of the line, without white space at its end."""
        return (await _joined(self.until(b"\r\n"), "body", _LINE_BYTES)).rstrip(b" \t")


async def _read_head(body: _MarkedText) -> tuple[str, str]:
    """Read the head of a field, and return the name of the field and that of its file."""
    lines = (await _joined(body.until(b"\r\n\r\n"), "body", _FIELD_BYTES)).split(b"\r\n")
    try:
        headers, _ = HeadersParser().parse_headers([*lines, b""])
    except HttpProcessingError as error:
        raise _not_a_form(error.message, "headers of a field") from error
    for header in (hdrs.CONTENT_ENCODING, hdrs.CONTENT_TRANSFER_ENCODING):
        if (value := headers.get(header, "binary")) not in ("binary", "8bit", "7bit", "identity"):
            raise InvalidRequestError(header, value, "fields that are not encoded")
    _, parameters = parse_content_disposition(headers.get(hdrs.CONTENT_DISPOSITION))
    names = [content_disposition_filename(parameters, part) or "" for part in ("name", "filename")]
    check_text("".join(names))  # as they come, they may have bytes that are no UTF-8
    return names[0], names[1]


async def _joined(pieces: AsyncGenerator[bytes, None], name: str, most: int) -> bytes:
    data = bytearray()
    async with aclosing(pieces):
        async for piece in pieces:
            data += piece
            if len(data) > most:
                raise InvalidRequestError(name, f"{len(data)} bytes or more", f"at most {most} bytes")
    return bytes(data)


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(name, data[:80].decode(errors="replace"), "text in UTF-8") from None


def _boundary(call: Call) -> bytes:
    header, sent = Message(), call.request.headers[hdrs.CONTENT_TYPE]
    header[hdrs.CONTENT_TYPE] = sent
    boundary = header.get_boundary("")
    if not 0 < len(boundary) <= _MOST_BOUNDARY or not boundary.isascii():
        raise InvalidRequestError("content-type", sent[:200], f"{FORM} with a boundary")
    return boundary.encode()


def _not_a_form(found: str, allowed: str) -> InvalidRequestError:
    return InvalidRequestError("body", found, f"a whole form of the type {FORM}: {allowed}")


def _nested(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a form as an object: `expires_after[seconds]` is the field `seconds` of `expires_after`."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        outer, bracket, inner = name.removesuffix("]").partition("[")
        if not bracket and name not in found:
            found[name] = value
        elif bracket and isinstance(below := found.setdefault(outer, {}), dict):
            is_number = inner == "seconds" and value.isascii() and value.isdecimal() and len(value) < 10
            below[inner] = int(value) if is_number else value
        else:
            raise InvalidRequestError(name, value, f"{outer} only once")
    return found
