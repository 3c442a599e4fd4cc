"""Turns the tokens of an answer into text: whole characters, up to a stop string or stop token."""

from __future__ import annotations

import codecs
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.chat_template.answer import CallTracker
from rnn_engine.chat_template.tools import ToolFormat
from rnn_engine.requests import Event, FinishReason, GenerateRequest, TextDelta, TokenInfo
from rnn_engine.sampling.masks import SequenceMask
from rnn_engine.telemetry import EngineCounters
from rnn_engine.types import TokenLogprobs, mask_words

_SPACE = ord(" ")


class TokenInfos(dict[int, TokenInfo]):
    """Makes a `TokenInfo` without log-probabilities when a token first occurs. None may be changed."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        super().__init__()
        self._token_bytes = token_bytes

    def __missing__(self, token: int) -> TokenInfo:
        info = self[token] = TokenInfo(token, self._token_bytes(token), None)
        return info

    def data(self, token: int) -> bytes:
        return self[token].data


class TextStream:
    """Decodes tokens' bytes up to the first stop string; bytes of no character become U+FFFD at once."""

    def __init__(self, stops: Sequence[bytes], tools: ToolFormat | None = None, *, strips: bool = False) -> None:
        """Find `stops` as `StopMatcher` does."""
        self._matcher = StopMatcher(stops, tools, strips=strips) if stops else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._in_character = False  # the decoder holds the beginning of one

    @property
    def match(self) -> bytes | None:
        return None if self._matcher is None else self._matcher.match

    def feed(self, data: bytes, *, may_stop: bool = True) -> str:
        """Add bytes and return the text that is certain now. Unless `may_stop`, no stop string begins in them."""
        if self._matcher is not None and not may_stop:
            self._matcher.skip(data)
        elif self._matcher is not None:
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
        """Return the text held back as a possible stop string or an unfinished character; no more bytes will come."""
        return self._decoder.decode(b"" if self._matcher is None else self._matcher.flush(), final=True)


class StopMatcher:
    """Finds the stop string that ends first, the longest of several, in a stream of bytes, however it is cut."""

    def __init__(self, stops: Sequence[bytes], tools: ToolFormat | None = None, *, strips: bool = False) -> None:
        """Find `stops` everywhere except in calls, if `tools` says how these are written.

        With `strips`, none begins in the spaces before the first other character.
        """
        self._in_spaces = strips
        self._automaton = _Automaton(stops)
        self._calls = None if tools is None else CallTracker(tools)
        self._node = 0
        self._held = bytearray()
        self._found: tuple[int, bytes] | None = None  # a match and its place in `_held`; it may be part of a call
        self.match: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """Add `data`; return the bytes that surely lie before any stop string. Feed nothing after a match."""
        for byte in data:
            self._held.append(byte)
            if self._calls is not None and self._calls.feed(byte):
                self._node, self._found = 0, None
                continue
            self._in_spaces = self._in_spaces and byte == _SPACE
            if self._in_spaces:
                continue
            self._node = self._automaton.next(self._node, byte)
            match = self._automaton.match[self._node]
            if match is not None and self._found is None:
                self._found = len(self._held) - len(match), match
            if self._found is not None and (self._calls is None or not self._calls.may_begin):
                return self.flush()
        return self._release(
            len(self._held) - self._automaton.depth[self._node] if self._found is None else self._found[0]
        )

    def skip(self, data: bytes) -> None:
        """Add the bytes `data`, in which no stop string begins; only the beginning of a stream may be skipped."""
        if self._calls is not None:
            for byte in data:
                self._calls.feed(byte)

    def flush(self) -> bytes:
        """Return the bytes held back as the possible beginning of a stop string, because no more bytes will come."""
        if self._found is not None:
            (begin, self.match), self._found = self._found, None
            del self._held[begin:]
        return self._release(len(self._held))

    def _release(self, count: int) -> bytes:
        released = bytes(self._held[:count])
        del self._held[:count]
        if self._found is not None:
            self._found = self._found[0] - count, self._found[1]
        return released


class _Automaton:
    """The automaton of Aho and Corasick: a node is the longest end of the stream that begins a stop string."""

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
        """Set the fallback of each of the automaton's nodes, the nearest to the root first, and copy matches along."""
        nodes = deque(self._children[0].values())
        while nodes:
            node = nodes.popleft()
            for byte, child in self._children[node].items():
                self._fallback[child] = self.next(self._fallback[node], byte)
                self.match[child] = self.match[child] or self.match[self._fallback[child]]
                nodes.append(child)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer has ended: the finish reason, and the stop string or stop token, if one ended it."""

    reason: FinishReason
    stop: bytes | int | None = None  # the stop string or token that ended it
    stop_token: TokenInfo | None = None  # if log-probabilities were asked for


CUT = Ending("length")


class Answer:
    """The text and tokens of an answer, and how it ended: tokens are passed to `take` until there is an `ending`."""

    def __init__(
        self,
        request: GenerateRequest,
        generated: array[int],
        mask: SequenceMask | None,
        infos: TokenInfos,
        counters: EngineCounters,
    ) -> None:
        """Start without tokens. Tokens will be appended to `generated`, passed to `mask` and counted by `counters`."""
        self.ending: Ending | None = None
        self._generated = generated
        self._mask = mask
        self._infos = infos
        self._counters = counters
        stops = request.stop_bytes
        self._text = TextStream(stops, request.tool_format, strips=request.strips)
        self._has_stops = len(stops) > 0
        self._stop_tokens = frozenset(request.stop_tokens)
        self._min_tokens = request.min_tokens
        self._max_tokens = request.max_tokens
        self._has_logprobs = request.logprobs is not None
        self._new_text = ""  # since the last `events`, like the next
        self._new_tokens: list[TokenInfo] = []

    def describe(self, token: int) -> TokenInfo:
        """Return a token's `TokenInfo` without its log-probability, a new object if that will be set."""
        info = self._infos[token]
        return TokenInfo(token, info.data, None) if self._has_logprobs else info

    def take(self, info: TokenInfo) -> bool:
        """Add a token to the answer; return False if it ends the text."""
        self._generated.append(info.token)
        if self._mask is not None:
            self._mask.accept(info.token)
        return self._show((info,))

    def take_all(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> bool:
        """Add one or more tokens to the answer; return False if the last one ends the text. No other may end it.

        `logprobs` are those of the tokens, if they were asked for. There must be no mask.
        """
        self._generated.extend(tokens)
        infos = [self._infos[token] for token in tokens]
        if self._has_logprobs:
            infos = [
                TokenInfo(info.token, info.data, own.own, own.top) for info, own in zip(infos, logprobs, strict=True)
            ]
        return self._show(infos)

    def _show(self, infos: Sequence[TokenInfo]) -> bool:
        """Add the text of tokens just appended; return False if the last one ends the text, as no other may."""
        last, num_generated = infos[-1], len(self._generated)
        self._counters.generated_tokens += len(infos)
        is_stop = last.token in self._stop_tokens
        if is_stop:
            infos = infos[:-1]
        self._new_tokens += infos
        data = infos[0].data if len(infos) == 1 else b"".join([info.data for info in infos])
        self._new_text += self._text.feed(data, may_stop=num_generated > self._min_tokens)
        if is_stop:
            self.end(Ending("stop", last.token, last if self._has_logprobs else None))
        elif self._has_stops and self._text.match is not None:
            self.end(Ending("stop", self._text.match))
        elif self._mask is not None and self._mask.ended:
            self.end(Ending("stop"))
        elif num_generated >= self._max_tokens:
            self.end(CUT)
        return self.ending is None

    def end(self, ending: Ending) -> None:
        """End the answer as `ending` describes. What was held back for a stop string becomes text."""
        self.ending = ending
        self._new_text += self._text.flush()

    def events(self) -> list[Event]:
        """Return the event with the text and tokens added since the last call; an empty list if there are none."""
        if not self._new_tokens and not self._new_text:
            return []
        delta = TextDelta(self._new_text, tuple(self._new_tokens))
        self._new_text, self._new_tokens = "", []
        return [delta]


# Masks of the tokens that may end a text: a device that draws several tokens at a time stops after each of them.

_MASKS = 256  # kept; requests that end in the same way share one


class Halts:
    """Makes bit masks of the tokens that may end a text: stop tokens, and tokens that may complete a stop string."""

    def __init__(self, vocab_size: int, token_bytes: Callable[[int], bytes]) -> None:
        text = cache(partial(_text_of, vocab_size, token_bytes))
        self._make = lru_cache(_MASKS)(partial(_make_mask, vocab_size, text))  # no method, which would keep this object

    def of(self, request: GenerateRequest) -> NDArray[np.uint32]:
        """Return the mask [ceil(V / 32)] of the tokens that may end the text, shared by equal requests."""
        return self._make(frozenset(request.stop_tokens), frozenset(stop[-1] for stop in request.stop_bytes))


_Vocabulary: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.intp]]


def _make_mask(
    vocab_size: int, text: Callable[[], _Vocabulary], stop_tokens: frozenset[int], last_bytes: frozenset[int]
) -> NDArray[np.uint32]:
    """Return the bit mask of `stop_tokens`, and of the tokens that have one of the last bytes of stop strings."""
    halts = np.zeros(32 * mask_words(vocab_size), np.bool_)
    halts[list(stop_tokens)] = True
    for byte in last_bytes:
        data, owners = text()
        halts[owners[data == byte]] = True
    return np.packbits(halts, bitorder="little").view("<u4").astype(np.uint32)


def _text_of(vocab_size: int, token_bytes: Callable[[int], bytes]) -> _Vocabulary:
    """Return the bytes of all tokens, concatenated, and for each byte the id of the token to which it belongs."""
    pieces = [token_bytes(token) for token in range(vocab_size)]
    owners = np.repeat(np.arange(vocab_size), [len(piece) for piece in pieces])
    return np.frombuffer(b"".join(pieces), np.uint8), owners
