"""Where a long text is divided, so that its parts are tokenized one by one and take little memory at a time.

A cut is exact where the pre-tokenizer splits in any case: between two characters that no match of its regular
expressions has next to each other. Then the tokens of the parts are those of the whole. A text that has no such place
for long is cut anyway, if its tokenizer adds nothing at the beginning or end of a text: its tokens still spell it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.tokenizer.adjacency import NUM_KINDS, UnreadPatternError, kinds_of, read_pattern

PART_CHARACTERS: Final = 1 << 14

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UNICODE_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_LOCAL_STEPS: Final = frozenset({"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"})
_NUM_ASCII: Final = 128


class Divider:
    """Divides the texts of one tokenizer."""

    def __init__(self, settings: Mapping[str, Any], part_characters: int = PART_CHARACTERS) -> None:
        """`settings` is the content of a tokenizer.json."""
        normalizers = flatten(settings["normalizer"], "normalizers")
        splitters = flatten(settings["pre_tokenizer"], "pretokenizers")
        self._part_characters = part_characters
        self._special = [token["content"] for token in settings["added_tokens"] if token["special"]]
        self._is_cut = _exact_cuts(normalizers, splitters, settings["added_tokens"])  # [kinds, kinds]
        self.divides = all(map(_is_local_normalizer, normalizers)) and all(map(_is_local_splitter, splitters))

    def parts(self, text: str) -> Iterator[str]:
        """Yield the parts of `text`, or the whole where `divides` is False."""
        start = 0
        while self.divides and len(text) - start > self._part_characters:
            end = self._find_cut(text, start, start + self._part_characters)
            yield text[start:end]
            start = end
        yield text[start:]

    def exact_cuts(self, text: str) -> NDArray[np.intp]:
        """Return the positions at which a cut of `text` is known to change no token."""
        kinds = kinds_of(text)
        return np.flatnonzero(self._is_cut[kinds[:-1], kinds[1:]]) + 1

    def _find_cut(self, text: str, start: int, end: int) -> int:
        """Return the last exact cut between `start` and `end`; else `end`, but none in a special token."""
        exact = self.exact_cuts(text[start:end])
        if exact.size:
            return start + int(exact[-1])
        around = (text.find(each, max(start + 1, end - len(each) + 1), end + len(each) - 1) for each in self._special)
        return min((place for place in around if place >= 0), default=end)


def flatten(step: Mapping[str, Any] | None, parts: str) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, of which a sequence has its own under the name `parts`."""
    if step is None:
        return []
    return [each for part in step[parts] for each in flatten(part, parts)] if parts in step else [step]


def _is_local_normalizer(step: Mapping[str, Any]) -> bool:
    """Whether a step gives a text again when its parts are put together: it looks at single characters."""
    kind = step["type"]
    return kind in _UNICODE_FORMS or (kind == "Replace" and len(step["pattern"].get("String", "")) == 1)


def _is_local_splitter(step: Mapping[str, Any]) -> bool:
    return step["type"] in _LOCAL_STEPS and not step.get("add_prefix_space", False)


def _exact_cuts(
    normalizers: Sequence[Mapping[str, Any]],
    splitters: Sequence[Mapping[str, Any]],
    added_tokens: Sequence[Mapping[str, Any]],
) -> NDArray[np.bool_]:
    """Return between which kinds of characters a cut is exact. [kinds, kinds]"""
    cuts = np.zeros((NUM_KINDS, NUM_KINDS), np.bool_)
    if any(step["type"] not in _UNICODE_FORMS for step in normalizers):
        return cuts
    if any(token["single_word"] for token in added_tokens):  # it depends on the character before
        return cuts
    if any(step["type"] == "ByteLevel" for step in splitters[:-1]):  # later steps see other characters
        return cuts
    try:
        found = [read_pattern(pattern) for step in splitters for pattern in _patterns(step)]
        added = [read_pattern(_added_pattern(token)) for token in added_tokens]
    except UnreadPatternError:
        return cuts
    for each in found:
        cuts |= each.begins  # the second of two kinds: a match begins there, unless it lies in the one before
    for each in (*found, *added):
        cuts &= ~each.follows
    if normalizers:  # a character beyond ASCII may be composed with its neighbours
        cuts[_NUM_ASCII:] = cuts[:, _NUM_ASCII:] = False
    return cuts


def _patterns(step: Mapping[str, Any]) -> Iterator[str]:
    """Yield the regular expression by whose matches a step splits.

    Raises UnreadPatternError for a step of another kind.
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
