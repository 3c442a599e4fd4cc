"""Damage to files inside their structure, which checks of the outer format do not detect first."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from random import Random
from typing import Any

import cbor2

from tools.fuzz.mutations import mutate_bytes, mutate_value


def mutate_file(data: bytes, random: Random) -> bytes:
    """Return the file with some bytes damaged or, equally often, well-formed with another content."""
    if random.random() < 0.5:
        return mutate_bytes(data, random)
    try:
        if data[:2] == b"PK":
            return _mutate_zip(data, random)
        if data[8:9] == b"{":
            return _mutate_safetensors(data, random)
        if data[:1] in (b"{", b"["):
            return _encode(mutate_value(json.loads(data), random))
        return cbor2.dumps(mutate_value(cbor2.loads(data), random))
    except (ValueError, TypeError, OverflowError, cbor2.CBORError):  # no such structure, or none for this value
        return mutate_bytes(data, random)


def _mutate_safetensors(data: bytes, random: Random) -> bytes:
    """Change the header, and write its new length before it."""
    length = int.from_bytes(data[:8], "little")
    header = _encode(mutate_value(json.loads(data[8 : 8 + length]), random))
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _mutate_zip(data: bytes, random: Random) -> bytes:
    """Change, leave out, double or rename a member, with checksums that fit."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    place = random.randrange(len(members))
    name, content = members[place]
    match random.randrange(6):
        case 0:
            del members[place]
        case 1:
            members.append((name.replace("data", random.choice(("", "../data", "x"))), content))
        case _:
            members[place] = (name, mutate_bytes(content, random))
    made = io.BytesIO()
    compression = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with (
        warnings.catch_warnings(action="ignore"),  # two members with the same name are intended
        zipfile.ZipFile(made, "w", compression) as archive,
    ):
        for member, content in members:
            archive.writestr(zipfile.ZipInfo(member), content, compression)  # without the time of day
    return made.getvalue()


def _encode(value: Any) -> bytes:  # noqa: ANN401
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
