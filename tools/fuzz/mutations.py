"""Random damage to bytes, to JSON-like values, and to files inside their structure. Equal `Random`s damage equally."""

from __future__ import annotations

import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import cbor2

_BytesMutation: TypeAlias = Callable[[bytearray, int, Random], None]  # arguments: data that is not empty, a place in it

_EDGE = 1024  # bytes at both ends, for headers and directories: damage to these tests most
_LONGEST = 64  # bytes that one mutation moves
_INTEGERS = (
    *(0, 1, 2, 64, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1),
)
_NUMBERS = (b"0", b"-1", b"1.5", b"65", b"4294967296", b"9223372036854775808", b"1e309", b"1" * 400, b"NaN")

HOSTILE: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, -5, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *(2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**309),
    *("", "\0", " ", "none", "null", "../../etc/passwd", "/etc/passwd", "a" * 3000, "\n\n"),
    *("\ud800", "\u202e", "💥" * 50),
    *("{user}", "{content}" * 20, "%s%n", "text\r\nX-Header: 1", "a/b", ".", "..", "CON"),
    *([], {}, [[]], [None], [0] * 300, ["a"] * 300, [[1, 2], "a"], {"a": {"b": {"c": []}}}, {"": 0}, {"path": "x"}),
)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Return a copy of `data` with random changes at one to four places."""
    damaged = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if not damaged:
            return random.randbytes(8)
        random.choice(_BYTES_MUTATIONS)(damaged, _place(len(damaged), random), random)
    return bytes(damaged)


def _place(length: int, random: Random) -> int:
    """Return a random position below `length`, often near the beginning or the end."""
    low, high = random.choice(((0, _EDGE), (0, _EDGE), (length - _EDGE, length), (0, length)))
    return random.randrange(max(low, 0), max(min(high, length), 1))


def _flip(data: bytearray, place: int, random: Random) -> None:
    data[place] ^= 1 << random.randrange(8)


def _replace(data: bytearray, place: int, random: Random) -> None:
    data[place] = random.choice((0, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _write_integer(data: bytearray, place: int, random: Random) -> None:
    width = random.choice((1, 2, 4, 8))
    packed = struct.pack("<Q", random.choice(_INTEGERS) % 2 ** (8 * width))[:width]
    data[place : place + width] = packed if random.random() < 0.5 else packed[::-1]


def _write_number(data: bytearray, place: int, random: Random) -> None:
    """Replace the first number in ASCII digits at or after `place` by a random extreme one."""
    found = re.search(rb"-?[0-9]+", data[place:])
    if found is not None:
        data[place + found.start() : place + found.end()] = random.choice(_NUMBERS)


def _delete(data: bytearray, place: int, random: Random) -> None:
    del data[place : place + random.randint(1, _LONGEST)]


def _insert(data: bytearray, place: int, random: Random) -> None:
    data[place:place] = random.randbytes(random.randint(1, _LONGEST))


def _repeat(data: bytearray, place: int, random: Random) -> None:
    piece = data[place : place + random.randint(1, _LONGEST)]
    data[place:place] = piece * random.choice((1, 2, 100))


def _move(data: bytearray, place: int, random: Random) -> None:
    source = random.randrange(len(data))
    piece = data[source : source + random.randint(1, _LONGEST)]
    data[place : place + len(piece)] = piece


def _cut(data: bytearray, place: int, _random: Random) -> None:
    del data[place:]


def _zero(data: bytearray, place: int, random: Random) -> None:
    width = min(random.randint(1, _LONGEST), len(data) - place)
    data[place : place + width] = bytes(width)


_BYTES_MUTATIONS: tuple[_BytesMutation, ...] = (
    *(_flip, _replace, _write_integer, _write_number, _delete, _insert, _repeat, _move, _cut, _zero),
)


def mutate_value(value: Any, random: Random) -> Any:  # noqa: ANN401
    """Return a copy of a JSON-like `value` with one part of it replaced, omitted, duplicated or renamed."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        return _mutate_object(value, random)
    if isinstance(value, list) and value and random.random() < 0.7:
        return _mutate_list(value, random)
    if isinstance(value, str) and value and random.random() < 0.3:
        return mutate_bytes(value.encode(errors="surrogatepass"), random).decode(errors="replace")
    return random.choice(HOSTILE)


def _mutate_object(value: dict[str, Any], random: Random) -> dict[str, Any]:
    name = random.choice(list(value))
    rest = {key: part for key, part in value.items() if key != name}
    match random.randrange(12):
        case 0:
            return rest
        case 1:
            return {**value, random.choice(("unknown", "", name.upper(), name + "\0")): random.choice(HOSTILE)}
        case 2:
            return {**rest, random.choice(list(value)): value[name]}
    return {**value, name: mutate_value(value[name], random)}


def _mutate_list(value: list[Any], random: Random) -> list[Any]:
    place = random.randrange(len(value))
    match random.randrange(8):
        case 0:
            return value[:place] + value[place + 1 :]
        case 1:
            return value * random.choice((2, 70, 300))
        case 2:
            return [*value, random.choice(HOSTILE)]
    return [*value[:place], mutate_value(value[place], random), *value[place + 1 :]]


def mutate_file(data: bytes, random: Random) -> bytes:
    """Return a copy of a file with bytes changed, or, half of the time, well-formed with changed content."""
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
    """Return a safetensors file with its JSON header changed, and the header's length corrected."""
    length = int.from_bytes(data[:8], "little")
    header = _encode(mutate_value(json.loads(data[8 : 8 + length]), random))
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _mutate_zip(data: bytes, random: Random) -> bytes:
    """Return a zip file with a member changed, omitted, duplicated or renamed. All checksums are correct."""
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
