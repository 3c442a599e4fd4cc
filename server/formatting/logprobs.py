"""Log-probabilities of tokens in OpenAI's two formats, that of completions and that of chats."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rnn_engine.chat_template.answer import Part, Piece
from rnn_engine.interface import EngineLike
from rnn_engine.requests import TokenInfo
from server.schemas.chat_answer import ChatLogprobs, ChatTokenLogprob, TokenLogprob
from server.schemas.completions import CompletionLogprobs

LEAST_LOGPROB = -9999.0  # what OpenAI returns for an impossible token; JSON has no infinity


def token_text(token: int, data: bytes) -> str:
    """Return a unique name of a token: its text, its bytes if they are no UTF-8, or its id if it has no bytes."""
    if not data:
        return f"token_id:{token}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionTokens:
    """Formats the tokens of one text for completions; text offsets go on from call to call."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def describe(self, tokens: Iterable[TokenInfo]) -> CompletionLogprobs:
        """Return the entries of the next tokens of the text."""
        described: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for info in tokens:
            described["tokens"].append(token_text(info.token, info.data))
            described["token_logprobs"].append(None if info.logprob is None else max(info.logprob, LEAST_LOGPROB))
            described["top_logprobs"].append(self._alternatives(info))
            described["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(info.data))
        return described

    def _alternatives(self, info: TokenInfo) -> dict[str, float] | None:
        """Return the likeliest tokens and the token itself; None if its log-probability is unknown."""
        if info.logprob is None:
            return None
        tops = {
            token_text(token, self._engine.detokenize([token])): max(logprob, LEAST_LOGPROB)
            for token, logprob in info.top
        }
        return tops | {token_text(info.token, info.data): max(info.logprob, LEAST_LOGPROB)}


class ContentTokens:
    """Finds the tokens of an answer's content, so that their texts join to it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[TokenInfo, str]] = deque()  # tokens with the text that each one completes

    def divide(self, tokens: Iterable[TokenInfo], pieces: Iterable[Piece]) -> list[TokenInfo]:
        """Return the tokens of the content in `pieces`, which come after the earlier ones as do `tokens`.

        A token that belongs to the content in part is cut to that part. One that ends inside a character belongs to
        what the character belongs to.
        """
        self._waiting.extend((info, self._decoder.decode(info.data)) for info in tokens)
        found: list[TokenInfo] = []
        for piece in pieces:
            taken = list(self._take(piece.length))
            if piece.part is Part.CONTENT:
                found += taken
        return found

    def _take(self, length: int) -> Iterator[TokenInfo]:
        """Yield the tokens of the next `length` characters."""
        while self._waiting and length > 0:
            info, text = self._waiting.popleft()
            if len(text) > length:
                self._waiting.appendleft((replace(info, data=text[length:].encode()), text[length:]))
                info = replace(info, data=text[:length].encode())
            yield info
            length -= len(text)


def chat_logprobs(engine: EngineLike, tokens: Sequence[TokenInfo]) -> ChatLogprobs:
    """Return the entries of tokens for chats."""
    return {"content": [_chat_entry(engine, info) for info in tokens], "refusal": None}


def _chat_entry(engine: EngineLike, info: TokenInfo) -> ChatTokenLogprob:
    own = _entry(info.token, info.data, LEAST_LOGPROB if info.logprob is None else info.logprob)
    tops = [_entry(token, engine.detokenize([token]), logprob) for token, logprob in info.top]
    return {**own, "top_logprobs": tops}


def _entry(token: int, data: bytes, logprob: float) -> TokenLogprob:
    return {"token": token_text(token, data), "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}
