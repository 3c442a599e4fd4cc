"""OpenAI's files: uploaded for jobs, listed, read and deleted, each by the API key that made it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from email.message import Message
from typing import Annotated, Any, Literal, NotRequired, get_args

from aiohttp import content_disposition_filename, hdrs, parse_content_disposition, web
from aiohttp.http import HeadersParser
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, check_text
from rnn_engine_server.apis.common.owned import OWNER_QUERY, listed_owner, owner_of, query_cursor
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import PageEnds, body_pieces, page_ends, query_word, to_json
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import FORM, SETTINGS
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.store.files import FilePurpose, Files, NewFile, StoredFile, UploadPurpose

FILES = web.AppKey("files", Files)
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


class FileList(PageEnds):
    """Files. If `has_more`, the last one's id is `after` for the next page."""

    object: Literal["list"]
    data: list[FileObject]


class FileDeleted(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


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
async def upload(request: web.Request) -> FileObject:
    """Upload a file for a job."""
    _check_form(request)
    async with request.app[FILES].create(request[PRINCIPAL].name) as new:
        body = await _read_form(request, new)
        lifetime = _DEFAULT_LIFETIMES.get(body.purpose) if body.expires_after is None else body.expires_after.seconds
        new.describe(body.file, body.purpose, lifetime)
    assert new.stored is not None
    return file_object(new.stored)


@ROUTES.get(
    "/v1/files",
    query={
        "purpose": "Return only files with this purpose.",
        "limit": f"How many files to return: {_MOST_LISTED} by default and at most.",
        "order": "`desc` (the default) returns the newest file first, `asc` the oldest.",
        "after": "The id of a file: return only the files after it.",
        **OWNER_QUERY,
    },
)
async def list_files(request: web.Request) -> FileList:
    """The files of the API key."""
    purpose = query_word(request, "purpose", get_args(FilePurpose), None)
    cursor = query_cursor(request, _MOST_LISTED, _MOST_LISTED)
    found = await request.app[FILES].page(listed_owner(request), cursor, purpose)
    return {
        "object": "list",
        "data": list(map(file_object, found.items)),
        **page_ends(found.items, has_more=found.has_more),
    }


@ROUTES.get("/v1/files/{id}")
async def get_file(request: web.Request) -> FileObject:
    """What a file is."""
    return file_object(await _stored(request))


@ROUTES.get("/v1/files/{id}/content", answer=None, content_type="application/octet-stream")
async def get_content(request: web.Request) -> web.StreamResponse:
    """The content of a file."""
    stored = await _stored(request)
    response = web.StreamResponse(
        headers={hdrs.CONTENT_TYPE: "application/octet-stream", hdrs.CONTENT_DISPOSITION: "attachment"}
    )
    response.content_length = stored.num_bytes
    with await request.app[FILES].open_content(stored) as file:
        await response.prepare(request)
        # aiohttp's FileResponse sends a file without a look at how fast the client reads, and by the event loop
        while request.method != hdrs.METH_HEAD and (piece := await asyncio.to_thread(file.read, _SENT_BYTES)):
            await response.write(piece)
    await response.write_eof()
    return response


@ROUTES.delete("/v1/files/{id}", scope=Scope.MANAGE)
async def delete_file(request: web.Request) -> FileDeleted:
    """Delete a file."""
    file_id = request.match_info["id"]
    await request.app[FILES].delete(owner_of(request), file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def _stored(request: web.Request) -> StoredFile:
    return await request.app[FILES].get(owner_of(request), request.match_info["id"])


# The form of an upload is read part by part, in any order of its fields, and the file is written as it comes.


def _check_form(request: web.Request) -> None:
    """Raise InvalidRequestError unless the body is a form, and an aiohttp exception if it is longer than allowed."""
    if request.content_type != FORM:
        raise InvalidRequestError("content-type", request.content_type, f"{FORM}, a form with `file` and `purpose`")
    if request.content_length is not None:
        _check_size(request, request.content_length - _FORM_BYTES)


def _check_size(request: web.Request, num_bytes: int) -> None:
    most = request.app[SETTINGS].limits.max_file_bytes
    if num_bytes > most:
        found = f"file: the file has {num_bytes} bytes or more"
        raise web.HTTPRequestEntityTooLarge(most, num_bytes, text=f"{found}; expected at most {most} (max_file_bytes)")


async def _read_form(request: web.Request, new: NewFile) -> FileUpload:
    """Read and check the form, and write the content of its file to `new`. Raises InvalidRequestError."""
    fields: dict[str, Any] = {}
    most = request.app[SETTINGS].limits.max_file_bytes + _FORM_BYTES
    body = _MarkedText(body_pieces(request, most))
    end = b"--" + _boundary(request)
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
                _check_size(request, new.num_bytes + len(piece))
                await new.write(piece)
        else:
            fields[name] = _decoded(name, await _joined(content, name, _FIELD_BYTES))
        rest = await body.line()
        if rest == b"--":
            break
        if rest:
            raise _not_a_form(rest.decode(errors="replace"), "the end of the line after the boundary")
    return FileUpload.parse(to_json(_nested(fields)), request.app[SETTINGS].limits)


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


def _boundary(request: web.Request) -> bytes:
    header = Message()
    header[hdrs.CONTENT_TYPE] = request.headers[hdrs.CONTENT_TYPE]
    boundary = header.get_boundary("")
    if not 0 < len(boundary) <= _MOST_BOUNDARY or not boundary.isascii():
        raise InvalidRequestError("content-type", request.headers[hdrs.CONTENT_TYPE][:200], f"{FORM} with a boundary")
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
