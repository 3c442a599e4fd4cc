"""The place at which a stop string cuts a text, found by trying every place."""

from __future__ import annotations

from collections.abc import Sequence


def first_stop(data: bytes, stops: Sequence[bytes]) -> tuple[bytes, bytes | None]:
    """Return the bytes before the match that ends first, and the match; of several that end there, the longest."""
    for end in range(1, len(data) + 1):
        found = [stop for stop in stops if data[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return data[: end - len(longest)], longest
    return data, None
