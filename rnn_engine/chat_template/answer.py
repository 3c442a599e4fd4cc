"""Divide a model's answer into thoughts, content and tool calls while it arrives.

The `json` module does not do for finding the end of a call: it would read the call from its beginning for every piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

from rnn_engine.chat_template.tools import ToolFormat

ReasoningFormat: TypeAlias = Literal["auto", "deepseek", "none"]
"""How a model's thoughts are returned: `auto` and `deepseek` separate them from the content, `none` does not."""

THINK_BEGINS: Final = "<think"  # a prompt may end here, before the ">"
THINK_ENDS: Final = "</think"
_OPEN: Final = f"{THINK_BEGINS}>"
THINK_CLOSES: Final = f"{THINK_ENDS}>"
CALL_BEGINS: Final = '{"name": "'
"""The beginning of a call in a format without an opening text: whatever follows is then the name of a tool."""


class AnswerPart(Enum):
    """The kind of a piece of a model's answer, such as thoughts, content or a tool call."""

    MARKUP = "markup"  # the text around and between the others
    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"  # the text of a piece is the tool's name
    ARGUMENTS = "arguments"  # of the last call


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a model's answer: its kind, its text, and the number of the answer's characters that it represents."""

    part: AnswerPart
    text: str
    length: int


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What a model's answer may contain (thoughts, calls of which tools), and how it begins after the prompt."""

    thought: bool | None = None  # True: it begins inside thoughts; False: they have just been closed; see `ChatPrompt`
    bracket: bool = False  # the prompt ends before the ">" of a tag
    divides_thoughts: bool = True  # otherwise thoughts are content
    tools: ToolFormat | None = None  # how calls are written, if there may be any
    names: Sequence[str] = ()  # of the tools that may be called
    must_call: bool = False  # after any thoughts, it is calls alone
    strips: bool = True  # white space at the beginning is no content


class AnswerReader:
    """Divides one answer of a model into thoughts, content and tool calls while it arrives.

    Text that may still become markup is held back until that is decided.

    Calls of an unknown tool, and calls that are not written correctly, are content.
    """

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._held = ""
        self._blank = form.strips  # the content so far is white space, which is left out
        self._read: Callable[[bool], list[Piece]] = (
            self._read_beginning if form.divides_thoughts else self._read_content
        )
        self._json = _JsonObject()
        self.num_calls = 0
        tools = form.tools or ToolFormat()
        names = tuple(f'"{name}"' for name in form.names)
        self._opening = _Sequence(
            (tools.opening,), ("{",), ('"name"',), (":",), names, (",",), (f'"{tools.arguments}"',), (":",)
        )
        self._closing = _Sequence(("}",), (tools.closing,))

    @property
    def is_in_call(self) -> bool:
        """True if the arguments of the last call are not complete: if the answer ends now, the call was cut."""
        return self._read == self._read_arguments

    @property
    def is_plain(self) -> bool:
        """True if all further text of the answer is content, so that it need not be read."""
        return not (self._held or self._blank or self._form.names) and self._read == self._read_content

    def feed(self, text: str) -> list[Piece]:
        """Add `text` to the answer, and return its next pieces, as far as certain, in order and without gaps."""
        self._held += text
        return self._take_all(last=False)

    def finish(self) -> list[Piece]:
        """End the answer, and return the pieces of the text that was held back."""
        return self._take_all(last=True)

    def _take_all(self, last: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._held:
            read = self._read
            found = read(last)
            pieces += found
            if not found and read == self._read:
                break
        return pieces

    def _read_beginning(self, last: bool) -> list[Piece]:
        thought = self._form.thought
        text = self._held.lstrip()
        if thought is not None:
            text = text.removeprefix(">").lstrip() if self._form.bracket else text
            self._blank = True
        elif text.startswith(_OPEN):
            thought, text = True, text.removeprefix(_OPEN).lstrip()
        if not last and (not text or (thought is None and _OPEN.startswith(text))):
            return []  # more of the text to be left out may follow
        self._read = self._read_thoughts if thought else self._read_content
        return [] if thought is None else self._take(len(self._held) - len(text), AnswerPart.MARKUP)

    def _read_thoughts(self, last: bool) -> list[Piece]:
        end = self._held.find(THINK_CLOSES)
        if end < 0:
            return self._take(len(self._held) if last else _certain(self._held, THINK_CLOSES), AnswerPart.REASONING)
        self._read, self._blank = self._read_content, True
        pieces = self._take(len(self._held[:end].rstrip()), AnswerPart.REASONING)
        return pieces + self._take(self._held.index(THINK_CLOSES) + len(THINK_CLOSES), AnswerPart.MARKUP)

    def _read_content(self, last: bool) -> list[Piece]:
        if self._blank and (blank := len(self._held) - len(self._held.lstrip())) > 0:
            return self._take(blank, AnswerPart.MARKUP)
        self._blank = False
        if not self._form.names:
            return self._take(len(self._held), AnswerPart.CONTENT)
        first = self._form.tools.opening[:1] if self._form.tools and self._form.tools.opening else "{"
        start = self._held.find(first)
        while start >= 0:
            match = self._opening.match(self._held, start)
            if match is not None and match.is_whole and self._held[match.end] == "{":
                return self._begin_call(start, match)
            if match is not None and not match.is_whole and (not last or self._is_cut_call(start, match)):
                break
            start = self._held.find(first, start + 1)
        end = len(self._held) if start < 0 else start
        if last and start >= 0 and not self._held[:start].strip():
            return self._take(len(self._held), AnswerPart.MARKUP)  # a call that was cut before its arguments
        return self._take(end if last else len(self._held[:end].rstrip()), AnswerPart.CONTENT)

    def _is_cut_call(self, start: int, match: _Match) -> bool:
        if self._form.must_call:
            return True
        if self._form.tools is not None and self._form.tools.opening:
            return len(match.words) > 0 or len(self._held) - start > 1
        return len(match.words) > 2  # not only a brace

    def _begin_call(self, start: int, match: _Match) -> list[Piece]:
        self._read, self._json = self._read_arguments, _JsonObject()
        self.num_calls += 1
        before = self._take(len(self._held[:start].rstrip()), AnswerPart.CONTENT)
        length = match.end - sum(piece.length for piece in before)
        self._held = self._held[length:]
        return [*before, Piece(AnswerPart.CALL, match.words[4].strip('"'), length)]

    def _read_arguments(self, _last: bool) -> list[Piece]:
        length = self._json.feed(self._held)
        if self._json.is_complete:
            self._read = self._read_end
        return self._take(length, AnswerPart.ARGUMENTS)

    def _read_end(self, last: bool) -> list[Piece]:
        match = self._closing.match(self._held, 0)
        if match is not None and not match.is_whole and not last:
            return []
        self._read, self._blank = self._read_content, True
        return [] if match is None else self._take(match.end, AnswerPart.MARKUP)

    def _take(self, length: int, part: AnswerPart) -> list[Piece]:
        text, self._held = self._held[:length], self._held[length:]
        return [Piece(part, text, length)] if text else []


def whole_calls(reader: AnswerReader, pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Return the `pieces` of an answer that `reader` has read to its end, without a call that was cut."""
    if not reader.is_in_call:
        return pieces
    return pieces[: max(place for place, piece in enumerate(pieces) if piece.part is AnswerPart.CALL)]


def joined(pieces: Sequence[Piece], part: AnswerPart) -> str:
    """Return the text of the pieces that belong to `part`."""
    return "".join(piece.text for piece in pieces if piece.part is part)


@dataclass(frozen=True, slots=True)
class _Match:
    """How far a text matches a `_Sequence` of words. If the match is not whole, further text may still complete it."""

    is_whole: bool
    end: int
    words: Sequence[str] = ()  # found in the text


class _Sequence:
    """A pattern of words one after another, each one of several options, with any white space between them."""

    def __init__(self, *words: Sequence[str]) -> None:
        self._words = words

    def match(self, text: str, start: int) -> _Match | None:
        """Match the words with `text` from `start` on; return None if they can't match."""
        found: list[str] = []
        for options in self._words:
            word = next((option for option in options if text.startswith(option, start)), None)
            if word is None:
                rest = text[start:]
                if not any(option.startswith(rest) for option in options):
                    return None
                return _Match(False, len(text), found)
            found.append(word)
            start += len(word)
            while text[start : start + 1].isspace():
                start += 1
        return _Match(start < len(text), start, found)


class _JsonObject:
    """Finds the end of a JSON object in text that arrives in pieces; the first piece begins with the object's brace."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.is_complete = False

    @property
    def has_begun(self) -> bool:
        return self._depth > 0

    def feed(self, text: str) -> int:
        """Read the next piece of text, and return how many of its characters belong to the object."""
        for place, character in enumerate(text, start=1):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
                continue
            self._in_string = character == '"'
            self._depth += (character in "{[") - (character in "}]")
            if self._depth == 0:
                self.is_complete = True
                return place
        return len(text)


class CallTracker:
    """Finds the bytes of an answer that belong to calls, in which no stop string is looked for.

    A call is known as one from its opening text on, and ends with its JSON object.
    """

    def __init__(self, tools: ToolFormat) -> None:
        self._opening = tools.opening or CALL_BEGINS
        self._has_tag = bool(tools.opening)
        self._end_of_text = ""  # as long as the opening
        self._json: _JsonObject | None = None

    @property
    def may_begin(self) -> bool:
        """True if the answer so far ends with the beginning of a call's opening text."""
        lengths = range(1, len(self._opening))
        return self._json is None and any(self._end_of_text.endswith(self._opening[:length]) for length in lengths)

    def feed(self, byte: int) -> bool:
        """Add the next byte of the answer; return True if it belongs to a call."""
        character = chr(byte)  # whatever is no ASCII is in a string
        if self._json is None:
            self._end_of_text = (self._end_of_text + character)[-len(self._opening) :]
            if self._end_of_text != self._opening:
                return False
            self._end_of_text, self._json = "", _JsonObject()
            self._json.feed("" if self._has_tag else self._opening)
            return True
        if not self._json.has_begun and character != "{":
            is_space = character.isspace()
            self._json = self._json if is_space else None
            return is_space
        self._json.feed(character)
        if self._json.is_complete:
            self._json = None
        return True


def _certain(text: str, mark: str) -> int:
    """Return the length of `text` before any white space and any incomplete `mark` at its end, such as "</thi"."""
    longest = min(len(mark) - 1, len(text))
    overlap = next((length for length in range(longest, 0, -1) if text.endswith(mark[:length])), 0)
    return len(text[: len(text) - overlap].rstrip())
