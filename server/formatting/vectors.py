"""Answers that hold vectors, written piece by piece, so that a long one does not block the event loop."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from json import dumps

from aiohttp import web

from rnn_engine.types import F32
from server.http.bodies import to_json
from server.schemas.embeddings import Encoding
from server.schemas.usage import Usage

_NUMBERS_A_PIECE = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class VectorEntry:
    """One entry of a list object: its plain fields, and the name and value of the field that holds a vector."""

    fields: Mapping[str, object]
    name: str
    vector: F32  # [any] finite


async def send_vectors(
    request: web.Request, model: str, entries: Sequence[VectorEntry], encoding: Encoding, usage: Usage
) -> web.StreamResponse:
    """Answer with a list object of `entries`."""
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    await response.prepare(request)
    for piece in _pieces(model, entries, encoding, usage):
        await response.write(piece.encode())
        await asyncio.sleep(0)
    await response.write_eof()
    return response


def _pieces(model: str, entries: Sequence[VectorEntry], encoding: Encoding, usage: Usage) -> Iterator[str]:
    yield f'{{"object":"list","model":{dumps(model)},"data":['
    for number, entry in enumerate(entries):
        yield f'{"," if number else ""}{to_json(entry.fields).removesuffix("}")},"{entry.name}":'
        yield from _base64(entry.vector) if encoding == "base64" else _numbers(entry.vector)
        yield "}"
    yield f'],"usage":{to_json(usage)}}}'


def _base64(vector: F32) -> Iterator[str]:
    yield f'"{base64.b64encode(vector.astype("<f4").data).decode()}"'


def _numbers(vector: F32) -> Iterator[str]:
    """Yield a JSON list in pieces. Nine digits are enough to tell any two f32 apart."""
    yield "["
    for start in range(0, len(vector), _NUMBERS_A_PIECE):
        piece = vector[start : start + _NUMBERS_A_PIECE].tolist()
        yield ("," if start else "") + ",".join([f"{number:.9g}" for number in piece])
    yield "]"
