"""Divide a long text into parts that are tokenized one by one, to limit the memory that tokenizing takes.

A cut is exact if the pre-tokenizer splits there in any case: between two characters that no match of its regular
expressions contains next to each other. Then the tokens of the parts are those of the whole. A text without such a
place for long is cut anyway, if its tokenizer adds nothing at the beginning or end of a text: its tokens still spell
the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Find out which characters a match of a regular expression may have next to each other.
#
# The expression, of the kind that pre-tokenizers have, is read as a set of places, each for one character, and of the
# steps between them (Glushkov's automaton). Of a character, only its kind counts: itself in ASCII, else its general
# category. If the kind does not decide whether a place takes a character, the place counts as taking it.

_CATEGORIES: Final = tuple(
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split()  # noqa: SIM905
)
_NUM_ASCII: Final = 128
_OTHER: Final = _NUM_ASCII + len(_CATEGORIES)  # controls, unassigned characters, and those beyond the first plane
NUM_KINDS: Final = _OTHER + 1
_NUM_SEEN: Final = 1 << 16

_CAPITALS: Final = slice(ord("A"), ord("Z") + 1)
_SMALL: Final = slice(ord("a"), ord("z") + 1)
_CASED: Final = slice(_NUM_ASCII, _NUM_ASCII + 3)  # the categories of letters that have cases
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


class UnreadPatternError(Exception):
    """Raised if a regular expression contains a construct that `read_pattern` does not support."""


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The kinds of characters that may follow each other in a match of a regular expression, and that may begin one."""

    follows: NDArray[np.bool_]  # [kinds, kinds] True if a match may contain, or look at, the second after the first
    begins: NDArray[np.bool_]  # [kinds] True if every character of the kind is a match, unless a longer one is found


@dataclass(frozen=True, slots=True)
class _CutPlace:
    """One character's place in a regular expression, with the kinds (such as a Unicode category) that it matches.

    `some` is True for a kind of which it may match some characters, `all` for a kind of which it matches every one.
    Both are [kinds].
    """

    some: NDArray[np.bool_]
    all: NDArray[np.bool_]

    def inverted(self) -> _CutPlace:
        return _CutPlace(~self.all, ~self.some)

    def united(self, other: _CutPlace) -> _CutPlace:
        return _CutPlace(self.some | other.some, self.all | other.all)


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A parsed part of a regular expression: which of the expression's places its matches may begin and end with.

    A place takes one character of a text. Here it is an index in the reader's list of places.
    """

    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()  # places that may be a whole match of it
    passable: bool = True  # its neighbours may be next to each other
    empty: bool = True  # it matches the empty text, whatever follows


@cache
def _table() -> NDArray[np.uint8]:
    """Return the kind (ASCII character or category) of each of Unicode's first 65,536 characters, and of all others."""
    numbers = {category: _NUM_ASCII + number for number, category in enumerate(_CATEGORIES)}
    kinds = [*range(_NUM_ASCII)]
    kinds += [numbers.get(unicodedata.category(chr(code)), _OTHER) for code in range(_NUM_ASCII, _NUM_SEEN)]
    return np.array([*kinds, _OTHER], np.uint8)


def kinds_of(text: str) -> NDArray[np.uint8]:
    """Return the kind of each character of `text`: an ASCII character itself, or its Unicode category.

    -> [len(text)]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _table()[np.minimum(codes, _NUM_SEEN)]


def read_pattern(pattern: str) -> Adjacency:
    """Parse a regular expression, and return which kinds of characters its matches may have next to each other.

    Raises UnreadPatternError if the pattern can match the empty text, or contains a construct that is not supported,
    such as a lookbehind.
    """
    reader = _PieceReader(pattern)
    whole = reader.read_whole()
    follows = np.zeros((NUM_KINDS, NUM_KINDS), np.bool_)
    for before, after in reader.steps:
        follows |= np.logical_and.outer(reader.places[before].some, reader.places[after].some)
    begins = np.zeros(NUM_KINDS, np.bool_)
    for place in whole.alone:
        begins |= reader.places[place].all
    return Adjacency(follows, begins)


def _where(test: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return a boolean for each kind of character: the result of `test` for its Unicode category. -> [kinds]"""
    found = [test(unicodedata.category(chr(code))) for code in range(_NUM_ASCII)]
    return np.array([*found, *map(test, _CATEGORIES), False])


def _of(characters: Iterable[str]) -> _CutPlace:
    """Return the place of a regular expression that matches any one of `characters`."""
    some = np.zeros(NUM_KINDS, np.bool_)
    some[kinds_of("".join(characters))] = True
    every = some.copy()
    every[_NUM_ASCII:] = False
    return _CutPlace(some, every)


def _category(name: str) -> _CutPlace:
    if name not in _CATEGORIES and name not in "LMNPSZ":
        raise UnreadPatternError(name)
    found = _where(lambda category: category.startswith(name))
    some = found.copy()
    some[_OTHER] = True
    return _CutPlace(some, found)


def _spaces() -> _CutPlace:
    """Return the place of a regular expression that matches white space, \\s.

    It surely matches only the common white-space characters: libraries differ about the others.
    """
    common = _of(" \t\n\r\f")
    some = _of("\x0b\x1c\x1d\x1e\x1f").some | common.some | _where(lambda category: category.startswith("Z"))
    some[_OTHER] = True
    return _CutPlace(some, common.all)


def _folded(place: _CutPlace) -> _CutPlace:
    """Return a place of a regular expression that matches what `place` does, and the letters' other case as well.

    Some letters beyond ASCII are case variants of ASCII letters.
    """
    some = place.some.copy()
    some[_CAPITALS] |= place.some[_SMALL]
    some[_SMALL] |= place.some[_CAPITALS]
    some[_CASED] |= bool(some[_CAPITALS].any() or some[_CASED].any())
    return _CutPlace(some, place.all)


@dataclass(slots=True)
class _PieceReader:
    """A recursive-descent parser of a regular expression, which collects its characters' places and steps between."""

    pattern: str
    at: int = 0
    folds: bool = False  # upper and lower case are the same
    places: list[_CutPlace] = field(default_factory=list)
    steps: set[tuple[int, int]] = field(default_factory=set)

    def read_whole(self) -> _Fragment:
        whole = self._alternatives()
        if self.at < len(self.pattern) or whole.passable:
            raise UnreadPatternError(self.pattern)
        return whole

    def _take(self, text: str) -> bool:
        """Move past `text` and return True if the unread rest of the regular expression begins with it."""
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise UnreadPatternError(self.pattern)
        self.at += 1
        return self.pattern[self.at - 1]

    def _alternatives(self) -> _Fragment:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return _Fragment(
            frozenset().union(*(option.first for option in options)),
            frozenset().union(*(option.last for option in options)),
            frozenset().union(*(option.alone for option in options)),
            any(option.passable for option in options),
            any(option.empty for option in options),
        )

    def _sequence(self) -> _Fragment:
        whole = _Fragment()
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            part = self._repeated(self._single())
            self.steps |= {(before, after) for before in whole.last for after in part.first}
            whole = _Fragment(
                whole.first | part.first if whole.passable else whole.first,
                whole.last | part.last if part.passable else part.last,
                (whole.alone if part.empty else frozenset()) | (part.alone if whole.empty else frozenset()),
                whole.passable and part.passable,
                whole.empty and part.empty,
            )
        return whole

    def _repeated(self, part: _Fragment) -> _Fragment:
        """Parse the quantifier after a part of a regular expression, if there is one; return the repeated part."""
        least, most = 1, 1
        if self.at < len(self.pattern) and self.pattern[self.at] in "?*+{":
            least, most = self._quantifier()
        if most > 1:
            self.steps |= {(before, after) for before in part.last for after in part.first}
        alone = part.alone if least < 2 or part.empty else frozenset[int]()
        return _Fragment(part.first, part.last, alone, part.passable or least == 0, part.empty or least == 0)

    def _quantifier(self) -> tuple[int, int]:
        """Parse a quantifier such as `+`; return the least and the greatest number of repetitions, with 2 for any more.

        Raises UnreadPatternError for a possessive quantifier, and for a quantifier of a quantified part.
        """
        found = {"?": (0, 1), "*": (0, 2), "+": (1, 2), "{": (0, 0)}[self._next()]
        if found == (0, 0):
            end = self.pattern.find("}", self.at)
            bounds = self.pattern[self.at : end].split(",")
            if end < 0 or not re.fullmatch("[0-9]+,?[0-9]*|,[0-9]+", self.pattern[self.at : end]):
                raise UnreadPatternError(self.pattern)
            found, self.at = (int(bounds[0] or 0), int(bounds[-1] or 2)), end + 1
        lazy = self._take("?")
        if self.at < len(self.pattern) and self.pattern[self.at] in ("*+{" if lazy else "?*+{"):
            raise UnreadPatternError(self.pattern)  # a possessive quantifier, or one of a quantified part
        return found

    def _single(self) -> _Fragment:
        if self._take("("):
            return self._group()
        if self._take("["):
            place = self._class()
        else:
            place = _of("\n").inverted() if self._take(".") else self._character(self._next(), "^$*+?{})")
        self.places.append(_folded(place) if self.folds else place)
        number = frozenset({len(self.places) - 1})
        return _Fragment(number, number, number, passable=False, empty=False)

    def _group(self) -> _Fragment:
        folds, looks = self.folds, False
        if self._take("?"):
            looks = self._take("!") or self._take("=")
            if not looks:
                self.folds = self._take("i") or folds
                if not self._take(":"):
                    raise UnreadPatternError(self.pattern)
        part = self._alternatives()
        self.folds = folds
        if not self._take(")"):
            raise UnreadPatternError(self.pattern)
        return _Fragment(part.first, part.last, empty=False) if looks else part

    def _character(self, character: str, refused: str) -> _CutPlace:
        """Return the place for a character of the regular expression, just read, or for the escape that it begins.

        Raises UnreadPatternError if the character is one of `refused`.
        """
        if character in refused:
            raise UnreadPatternError(self.pattern)
        return self._escape() if character == "\\" else _of(character)

    def _escape(self) -> _CutPlace:
        character = self._next()
        if character in "sSdDpP":
            place = self._named(character.lower())
            return place.inverted() if character.isupper() else place
        if character in _ESCAPES:
            return _of(_ESCAPES[character])
        if character.isalnum() or not character.isascii():
            raise UnreadPatternError(self.pattern)
        return _of(character)

    def _named(self, kind: str) -> _CutPlace:
        if kind == "s":
            return _spaces()
        if kind == "d":
            return _category("Nd")
        if not self._take("{"):
            return _category(self._next())
        end = self.pattern.find("}", self.at)
        name, self.at = self.pattern[self.at : end], end + 1
        return _category(name)

    def _class(self) -> _CutPlace:
        """Parse a character class, such as [a-z], after its opening bracket; return the place that matches it."""
        inverted, found = self._take("^"), self._item()
        while not self._take("]"):
            found = found.united(self._item())
        return found.inverted() if inverted else found

    def _item(self) -> _CutPlace:
        """Parse one item of a character class, a character, range or escape; return the place that matches it."""
        if self.pattern.startswith("&&", self.at):
            raise UnreadPatternError(self.pattern)
        start = self._next()
        place = self._character(start, "[]")
        if not self.pattern.startswith("-", self.at) or self.pattern.startswith("-]", self.at):
            return place
        self.at += 1
        end = self._next()
        if "\\" in (start, end) or start > end:
            raise UnreadPatternError(self.pattern)
        found = _of(map(chr, range(ord(start), min(ord(end) + 1, _NUM_ASCII))))
        if not end.isascii():
            found.some[_NUM_ASCII:] = True
        return found


PART_CHARACTERS: Final = 1 << 14

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UNICODE_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_LOCAL_STEPS: Final = frozenset({"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"})


class Divider:
    """Divides long texts into parts that a given tokenizer can encode separately.

    `divides` is False if the tokenizer's steps do not allow that.
    """

    def __init__(self, settings: Mapping[str, Any], part_characters: int = PART_CHARACTERS) -> None:
        """Create a divider for the tokenizer.json with the content `settings`; a part has `part_characters` at most."""
        normalizers = flatten(settings["normalizer"], "normalizers")
        splitters = flatten(settings["pre_tokenizer"], "pretokenizers")
        self._part_characters = part_characters
        self._special = [token["content"] for token in settings["added_tokens"] if token["special"]]
        self._is_cut = _exact_cuts(normalizers, splitters, settings["added_tokens"])  # [kinds, kinds]
        self.divides = all(map(_is_local_normalizer, normalizers)) and all(map(_is_local_splitter, splitters))

    def parts(self, text: str) -> Iterator[str]:
        """Yield the parts into which `text` is divided, in order; the whole text if `divides` is False."""
        start = 0
        while self.divides and len(text) - start > self._part_characters:
            end = self._find_cut(text, start, start + self._part_characters)
            yield text[start:end]
            start = end
        yield text[start:]

    def exact_cuts(self, text: str) -> NDArray[np.intp]:
        """Return the positions at which `text` can be cut without changing its tokens, as far as that is known."""
        kinds = kinds_of(text)
        return np.flatnonzero(self._is_cut[kinds[:-1], kinds[1:]]) + 1

    def _find_cut(self, text: str, start: int, end: int) -> int:
        """Return the last position between `start` and `end` at which a cut changes no tokens, or else `end`.

        If there is no exact cut and `end` lies within a special token, the token's beginning is returned instead, so
        that no special token is cut.
        """
        exact = self.exact_cuts(text[start:end])
        if exact.size:
            return start + int(exact[-1])
        around = (text.find(each, max(start + 1, end - len(each) + 1), end + len(each) - 1) for each in self._special)
        return min((place for place in around if place >= 0), default=end)


def flatten(step: Mapping[str, Any] | None, parts: str) -> list[Mapping[str, Any]]:
    """Return the single steps of a normalizer or pre-tokenizer in a tokenizer.json, with nested sequences flattened.

    `parts` is the field in which a sequence has its steps.
    """
    if step is None:
        return []
    return [each for part in step[parts] for each in flatten(part, parts)] if parts in step else [step]


def _is_local_normalizer(step: Mapping[str, Any]) -> bool:
    """Return True if a step of a normalizer acts on single characters, so that it can be applied to parts of a text."""
    kind = step["type"]
    return kind in _UNICODE_FORMS or (kind == "Replace" and len(step["pattern"].get("String", "")) == 1)


def _is_local_splitter(step: Mapping[str, Any]) -> bool:
    return step["type"] in _LOCAL_STEPS and not step.get("add_prefix_space", False)


def _exact_cuts(
    normalizers: Sequence[Mapping[str, Any]],
    splitters: Sequence[Mapping[str, Any]],
    added_tokens: Sequence[Mapping[str, Any]],
) -> NDArray[np.bool_]:
    """Return a boolean for each pair of kinds of characters: True if a cut between these never changes the tokens.

    -> [kinds, kinds], by the kind before and the kind after the cut
    """
    cuts = np.zeros((NUM_KINDS, NUM_KINDS), np.bool_)
    if any(step["type"] not in _UNICODE_FORMS for step in normalizers):
        return cuts
    if any(token["single_word"] for token in added_tokens):  # such a token depends on the character before it
        return cuts
    if any(step["type"] == "ByteLevel" for step in splitters[:-1]):  # later steps see other characters
        return cuts
    try:
        found = [read_pattern(pattern) for step in splitters for pattern in _patterns(step)]
        added = [read_pattern(_added_pattern(token)) for token in added_tokens]
    except UnreadPatternError:
        return cuts
    for each in found:
        cuts |= each.begins  # the second of two kinds: a match begins there, unless the one before goes on
    for each in (*found, *added):
        cuts &= ~each.follows
    if normalizers:  # a character beyond ASCII may be composed with its neighbours
        cuts[_NUM_ASCII:] = cuts[:, _NUM_ASCII:] = False
    return cuts


def _patterns(step: Mapping[str, Any]) -> Iterator[str]:
    """Yield the regular expression at whose matches a step of a pre-tokenizer splits a text; nothing if it has none.

    Raises UnreadPatternError for a step of an unsupported kind.
    """
    match step:
        case {"type": "ByteLevel", "use_regex": False}:
            pass
        case {"type": "ByteLevel"}:
            yield _GPT2
        case {"type": "Digits", "individual_digits": individual}:
            yield r"\p{N}" if individual else r"\p{N}+"
        case {"type": "Split", "behavior": "Isolated", "pattern": pattern}:
            yield pattern["Regex"] if "Regex" in pattern else _literal(pattern["String"])
        case {"type": "Split", "behavior": "Removed", "invert": True, "pattern": {"Regex": pattern}}:
            yield pattern
        case _:
            raise UnreadPatternError(step["type"])


def _added_pattern(token: Mapping[str, Any]) -> str:
    before, after = r"\s*" if token["lstrip"] else "", r"\s*" if token["rstrip"] else ""
    return f"{before}{_literal(token['content'])}{after}"


def _literal(text: str) -> str:
    return re.sub(r"([\x00-\x7f])(?<![0-9A-Za-z])", r"\\\1", text)
