"""Turn the bytes of tokens into text: up to a stop string, and in whole characters."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence

from rnn_engine.requests import TokenInfo


class TokenInfos(dict[int, TokenInfo]):
    """Every token that has occurred, without a log-probability. All events share them, so nobody may change one."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        super().__init__()
        self._token_bytes = token_bytes

    def __missing__(self, token: int) -> TokenInfo:
        info = self[token] = TokenInfo(token, self._token_bytes(token), None)
        return info

    def data(self, token: int) -> bytes:
        """Return the bytes of a token."""
        return self[token].data


class TextStream:
    """Decodes the bytes of tokens as they come, up to the first stop string.

    A byte that can't be part of a character becomes U+FFFD at once and never holds up what follows.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._matcher = StopMatcher(stops) if stops else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._in_character = False  # the decoder holds the beginning of one

    @property
    def match(self) -> bytes | None:
        """The stop string that was found."""
        return None if self._matcher is None else self._matcher.match

    def feed(self, data: bytes, *, may_stop: bool = True) -> str:
        """Return the text that `data` makes certain: whole characters, and nothing that may belong to a stop string.

        Where it may not stop, which is so at the beginning alone, no stop string begins in `data`.
        """
        if self._matcher is not None and may_stop:
            data = self._matcher.feed(data)
            if self._matcher.match is not None:
                return self._decoder.decode(data, final=True)
        if not self._in_character:
            try:
                return data.decode()  # several times as fast as the decoder
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        self._in_character = self._decoder.getstate()[0] != b""
        return text

    def flush(self) -> str:
        """Return the text that was held back, since no more bytes will come."""
        return self._decoder.decode(b"" if self._matcher is None else self._matcher.flush(), final=True)


class StopMatcher:
    """Passes bytes through up to the first stop string, holding back what may still become one.

    The match that ends first wins; of those that end at the same byte, the longest. What is found does not depend on
    how the stream was cut.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._automaton = _Automaton(stops)
        self._node = 0
        self._held = bytearray()
        self.match: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that are certain to lie before any match. After a match nothing more may be fed."""
        for byte in data:
            self._held.append(byte)
            self._node = self._automaton.next(self._node, byte)
            match = self._automaton.match[self._node]
            if match is not None:
                self.match = match
                del self._held[-len(match) :]
                return self.flush()
        return self._release(len(self._held) - self._automaton.depth[self._node])

    def flush(self) -> bytes:
        """Return the bytes that were held back, since no more will come."""
        return self._release(len(self._held))

    def _release(self, count: int) -> bytes:
        released = bytes(self._held[:count])
        del self._held[:count]
        return released


class _Automaton:
    """Aho and Corasick's: a node is the longest end of the stream that begins a stop string; node 0 is none."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._children: list[dict[int, int]] = [{}]
        self._fallback = [0]  # node -> the node of its longest proper end
        self.depth = [0]
        self.match: list[bytes | None] = [None]  # the longest stop string that ends here
        for stop in stops:
            self._insert(stop)
        self._link()

    def next(self, node: int, byte: int) -> int:
        while node and byte not in self._children[node]:
            node = self._fallback[node]
        return self._children[node].get(byte, 0)

    def _insert(self, stop: bytes) -> None:
        node = 0
        for byte in stop:
            if byte not in self._children[node]:
                self._children[node][byte] = len(self._children)
                self._children.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[node] + 1)
                self.match.append(None)
            node = self._children[node][byte]
        self.match[node] = stop

    def _link(self) -> None:
        """Set the fallbacks, nodes nearer to the root first, and hand matches down along them."""
        nodes = deque(self._children[0].values())
        while nodes:
            node = nodes.popleft()
            for byte, child in self._children[node].items():
                self._fallback[child] = self.next(self._fallback[node], byte)
                self.match[child] = self.match[child] or self.match[self._fallback[child]]
                nodes.append(child)
