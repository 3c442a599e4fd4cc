"""The compilation of a grammar for a vocabulary, and token masks: kbnf runs its own kind, llguidance all others."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Final, Protocol, Self, TypeAlias, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.grammar.grammar import Grammar, GrammarError, GrammarKind
from rnn_engine.grammar.schemas import (
    LIMITS,
    fit_schema,
    json_source,
    load_schema,
    parse_number,
    plain_reason,
    with_options,
)
from rnn_engine.types import mask_words, unpack_masks

# A model's vocabulary in the forms that the grammar libraries require.

_IS_LOADED = "torch" in sys.modules
if not _IS_LOADED:
    sys.modules["torch"] = cast(ModuleType, None)  # makes importing torch fail, which kbnf handles
try:
    import kbnf
finally:
    if not _IS_LOADED:
        del sys.modules["torch"]

END: Final = 0  # the token that ends a text

WORD_SLICES: Final = ("[a-z]{1,10}", "[a-zA-Z]{1,10}", "[a-zA-Z0-9 ]{1,10}")
"""Sets of tokens that llguidance allows as a whole if a grammar allows each of them, besides those for JSON strings.

Without them, counted repetitions such as `[a-z]{1,200}` take several times as long, since every token is tried.
"""


class _Tokenizer(Protocol):
    def encode(self, text: str, /) -> list[int]: ...

    def decode_bytes(self, token: int, /) -> bytes: ...


class Vocabulary:
    """The bytes of each token, for grammars, which allow none without bytes. Token 0 ends a text."""

    def __init__(self, pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]] | None = None) -> None:
        """Make a vocabulary of `pieces` by id. Without `encode`, texts are divided into the longest pieces."""
        self.pieces = (b"", *pieces[1:])
        self.encode = encode or _LongestPieces(self.pieces)

    @classmethod
    def of(cls, tokenizer: _Tokenizer, size: int) -> Self:
        return cls([tokenizer.decode_bytes(token) for token in range(size)], tokenizer.encode)

    @property
    def size(self) -> int:
        return len(self.pieces)

    @property
    def has_text(self) -> bool:
        return any(self.pieces)

    def prepare(self, kind: GrammarKind) -> None:
        """Convert the vocabulary for the library that compiles grammars of `kind`, before a grammar needs it."""
        _ = self.for_kbnf if kind == "kbnf" else self.for_guidance

    @cached_property
    def for_guidance(self) -> LLTokenizer:
        """The vocabulary in the library llguidance's form. The first access takes some tenths of a second."""
        slices = [*WORD_SLICES, *LLTokenizer.general_slices()]
        return LLTokenizer(TokenizerWrapper(_GuidanceTokenizer(self)), slices=slices)

    @cached_property
    def for_kbnf(self) -> kbnf.Vocabulary:
        """The vocabulary in the library kbnf's form. The first access takes some tenths of a second."""
        pieces = {token: piece for token, piece in enumerate(self.pieces) if piece}
        tokens = {token: kbnf.Token(piece) for token, piece in pieces.items()}
        return kbnf.Vocabulary(tokens, {token: repr(piece) for token, piece in pieces.items()})


class _GuidanceTokenizer:
    """An adapter that gives a `Vocabulary` the attributes that the library llguidance requires of a tokenizer."""

    eos_token_id = END
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.pieces
        self.special_token_ids = [token for token, piece in enumerate(vocabulary.pieces) if not piece]
        self._encode = vocabulary.encode

    def __call__(self, text: bytes) -> list[int]:
        return list(self._encode(text.decode()))


class _LongestPieces:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        data, start, ids = text.encode(), 0, []
        while start < len(data):
            lengths = range(min(self._longest, len(data) - start), 0, -1)
            length = next((each for each in lengths if data[start : start + each] in self._ids), None)
            if length is None:
                raise ValueError(f"no token begins with the byte {data[start]:#04x}")
            ids.append(self._ids[data[start : start + length]])
            start += length
        return ids


class GuidanceMask:
    """A `rnn_engine.sampling.masks.TokenMask` of one text, for a grammar that the library llguidance runs."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        """Take ownership of `matcher`, llguidance's state of one text: the caller must not use it any more."""
        self._matcher = matcher
        self._mask = np.empty(mask_words(vocab_size), np.uint32)
        self._place = self._mask.ctypes.data, self._mask.nbytes  # kept, since reading it takes as long as a mask

    @property
    def ended(self) -> bool:
        return self._matcher.is_stopped()

    def forced(self) -> Sequence[int]:
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def next(self) -> NDArray[np.uint32]:
        self._matcher.unsafe_compute_mask_ptr(*self._place)
        self._check()
        return self._mask

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._check()

    def copy(self) -> GuidanceMask:
        return GuidanceMask(self._matcher.deep_copy(), 32 * len(self._mask))

    def _check(self) -> None:
        if self._matcher.is_error():
            error = self._matcher.get_error().removesuffix("<non-verbose/>").strip()
            raise StepError(f"the grammar can't be followed further: {error}")


class GuidanceGrammar:
    """A grammar compiled by the library llguidance. May be used on several threads."""

    left_out: Sequence[str] = ()  # the parts of its schemas that it does not enforce

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Compile `grammar`, which is strict, for `vocabulary`. Other threads can run. Raises GrammarError."""
        self._size = vocabulary.size
        source = _source(grammar)
        self._matcher = LLMatcher(vocabulary.for_guidance, source, log_level=0, limits=LIMITS)
        if error := self._matcher.get_error():
            if grammar.kind == "json_schema":
                fit_schema(load_schema(grammar.text), strict=True)  # raises the error with its place
            raise GrammarError(plain_reason(error) if grammar.kind == "json_schema" else error)

    def start(self) -> GuidanceMask:
        """Return the token mask of a new text that follows the grammar, before its first token."""
        return GuidanceMask(self._matcher.deep_copy(), self._size)


def _source(grammar: Grammar) -> str:
    """Return `grammar` as source text in the form that the library llguidance compiles."""
    match grammar.kind:
        case "json_schema":
            return json_source(load_schema(grammar.text))
        case "json_object":
            return json_source({"type": "object"})
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in _load_choices(grammar.text))
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case "gbnf":
            return LLMatcher.grammar_from_lark(_translate(grammar.text))
        case _:
            return LLMatcher.grammar_from_lark(grammar.text)


def fit_grammar(grammar: Grammar) -> tuple[Grammar, tuple[str, ...]]:
    """Return a strict form of a grammar, and the names of the parts of schemas that it leaves out.

    Raises GrammarError for a part of a strict schema that can't be enforced.
    """
    if grammar.kind == "tagged":
        return _fit_tagged(grammar)
    if grammar.kind != "json_schema" or grammar.strict:
        return grammar, ()
    fitted = fit_schema(load_schema(grammar.text, strict=False), strict=False)
    names = tuple(f"{grammar.field}{fault.place}" for fault in fitted.left_out)
    return replace(grammar, text=json.dumps(with_options(fitted.schema, strict=False)), strict=True), names


def _load_choices(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not valid JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("expected a list of strings that is not empty")
    return choices


def _translate(text: str) -> str:
    """Translate a grammar in llama.cpp's syntax to Lark. Raises GrammarError if it is invalid."""
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise GrammarError("it is too deeply nested") from None
    except Exception as error:  # the library raises plain exceptions
        raise GrammarError(str(error)) from error


_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Tag:
    """A tagged part of a text, such as a tool call: `begin`, then JSON that follows `schema`, then `end`."""

    begin: str
    schema: object  # a JSON schema; True allows any JSON text
    end: str
    name: str = ""  # of the schema, for errors
    strict: bool = True  # otherwise what can't be enforced is left out of the schema
    is_object: bool = False  # the JSON is an object, whatever a schema says that is not strict


def tagged_text(
    tags: Sequence[Tag],
    trigger: str,
    *,
    required: bool = False,
    parallel: bool = True,
    ending: str = "",
    otherwise: Tag | None = None,
) -> Grammar:
    r"""Return the grammar of texts that contain tagged parts, such as tool calls; `tags` lists the possible ones.

    The text is free until `trigger`, with which each tag begins. Then one of the tags follows to its end, then free
    text again, and so on.
    If `parallel` is False, a text has at most one tag and ends with it.
    If `required`, there is no free text: the text is a tag. If `parallel` too, several tags may follow each other,
    with line breaks between them, and `ending` may follow the last one.
    With `otherwise` there is no free text either: the text is tags as with `required`, or that tag alone. `required`
    overrides `otherwise`.

    For example, this grammar makes every tool call that the text begins a valid one::

        tags = [
            Tag('<tool_call>\n{"name": "add", "arguments": ', schema_of_add, "}\n</tool_call>"),
            Tag('<tool_call>\n{"name": "now", "arguments": ', schema_of_now, "}\n</tool_call>"),
        ]
        request = GenerateRequest(prompt, grammar=tagged_text(tags, "<tool_call>"))

    Raises ValueError if there is no tag, or one does not begin with `trigger`.
    """
    if not tags or not trigger or not all(tag.begin.startswith(trigger) for tag in tags):
        raise ValueError(
            f"expected a trigger that is not empty, and tags that begin with it; got {trigger!r}, {tags!r}"
        )
    rules = [f"tag_{number}: {_slot(tag.begin[len(trigger) :], number, tag.end)}" for number, tag in enumerate(tags)]
    any_tag = " | ".join(f"tag_{number}" for number in range(len(tags)))
    if required or otherwise is not None:
        one = f"{_quoted(trigger)} ({any_tag})"
        last = f"{_quoted(ending)}?" if ending else ""
        line_break = _quoted("\n")
        start = f"{one} ({line_break} {one})* {last}" if parallel else one
        if otherwise is not None and not required:
            start = f"{start} | {_slot(otherwise.begin, len(tags), otherwise.end)}"
            tags = [*tags, otherwise]
    else:
        rules += [f"TEXT: {_TEXT}", "last: TEXT", f"free[lazy]: TEXT {_quoted(trigger)}"]
        start = f"(free ({any_tag}))* last" if parallel else f"free ({any_tag}) | last"
    lark = "\n".join(["%llguidance {}", f"start: {start}", *rules, ""])
    schemas = [
        {"name": tag.name, "schema": tag.schema, "strict": tag.strict, "is_object": tag.is_object} for tag in tags
    ]
    try:
        return Grammar("tagged", json.dumps({"lark": lark, "schemas": schemas}), "tools", is_written=False)
    except RecursionError:
        raise InvalidRequestError("tools", "JSON schemas", "less deeply nested objects and lists") from None


def _fit_tagged(grammar: Grammar) -> tuple[Grammar, tuple[str, ...]]:
    """Return a tagged text's grammar in Lark, with schemas that can be enforced; see `fit_grammar`."""
    text = json.loads(grammar.text, parse_float=parse_number)
    names: list[str] = []
    schemas = []
    for each in text["schemas"]:
        try:
            fitted = fit_schema(each["schema"], strict=each["strict"], is_object=each["is_object"])
        except GrammarError as error:
            raise error.below(each["name"]) from None
        names += (f"{each['name']}{fault.place}" for fault in fitted.left_out)
        schemas.append(json.dumps(with_options(fitted.schema, strict=each["strict"])))
    lark = _SLOT.sub(lambda found: f"%json {schemas[int(found[1])]}", text["lark"])
    return replace(grammar, kind="lark", text=lark), tuple(names)


_SLOT: Final = re.compile(r"%schema (\d+)")


def _slot(begin: str, number: int, end: str) -> str:
    """Return the grammar rule for a tagged part, with a mark in place of the schema with this number."""
    return " ".join(filter(None, (_quoted(begin), f"%schema {number}", _quoted(end))))


def loosened(grammar: Grammar) -> tuple[Grammar, tuple[str, ...]] | None:
    """Return a grammar that enforces no schema that is not strict, and the names of these; None without any."""
    if grammar.kind == "json_schema" and not grammar.strict:
        return replace(grammar, text="true", strict=True), (f"{grammar.field}#",)
    if grammar.kind != "tagged":
        return None
    text = json.loads(grammar.text)
    loose = [each for each in text["schemas"] if not each["strict"]]
    for each in loose:
        each.update(schema={"type": "object"} if each["is_object"] else True, strict=True)
    names = tuple(f"{each['name']}#" for each in loose)
    return (replace(grammar, text=json.dumps(text)), names) if loose else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


# Grammars in kbnf's language, which clients of ai00 send. A text ends once the grammar can end.


class KbnfMask:
    """A `rnn_engine.sampling.masks.TokenMask` of one text, for a grammar that the library kbnf runs."""

    def __init__(self, engine: kbnf.Engine, vocab_size: int) -> None:
        """Take ownership of `engine`, kbnf's state of one text: the caller must not use it any more."""
        self._engine = engine
        self._mask = np.zeros(mask_words(vocab_size), np.uint32)

    @property
    def ended(self) -> bool:
        ended: bool = self._engine.is_finished()
        return ended

    def forced(self) -> Sequence[int]:
        return ()  # the library does not report them

    def next(self) -> NDArray[np.uint32]:
        self._engine.compute_allowed_token_ids()
        self._engine.fill_torch_bitmask(self._mask.ctypes.data)
        return self._mask

    def accept(self, token: int) -> None:
        try:
            self._engine.try_accept_new_token(token)
        except ValueError as error:
            raise StepError(f"the grammar can't be followed further: {error}") from error

    def copy(self) -> KbnfMask:
        return KbnfMask(deepcopy(self._engine), 32 * len(self._mask))


class KbnfGrammar:
    """A grammar compiled by the library kbnf. May be used on several threads."""

    left_out: Sequence[str] = ()

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        """Compile `grammar` for `vocabulary`. Blocks all other Python threads. Raises GrammarError if it is invalid."""
        self._size = vocabulary.size
        try:
            self._engine = kbnf.Engine(grammar.text, vocabulary.for_kbnf)
        except ValueError as error:
            raise GrammarError(_with_place(grammar.text, str(error))) from error

    def start(self) -> KbnfMask:
        """Return the token mask of a new text that follows the grammar, before its first token."""
        return KbnfMask(deepcopy(self._engine), self._size)


def _with_place(text: str, message: str) -> str:
    """Return kbnf's error `message` with a line and column in place of the unread rest of the grammar `text`."""
    unread = re.search(r'errors: \[\("((?:[^"\\]|\\.)*)"', message)
    if unread is None:
        return message
    escaped = re.sub(r"\\u\{(\w+)\}", lambda match: f"\\U{match[1]:0>8}", unread[1])
    rest = len(re.sub(r"\\(?:U\w{8}|.)", "_", escaped))
    read = text[: len(text) - rest]
    line, column = read.count("\n") + 1, len(read) - (read.rfind("\n") + 1) + 1
    return f"it can't be parsed from line {line}, column {column} on: {text[len(read) : len(read) + 40]!r}"


CompiledGrammar: TypeAlias = GuidanceGrammar | KbnfGrammar

START_SECONDS: Final = 2.0  # of processor time that following the beginning of a text may take


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> CompiledGrammar:
    """Return `grammar`, compiled for `vocabulary`, for any number of texts. Raises GrammarError if it is invalid."""
    if grammar.kind == "kbnf":
        return KbnfGrammar(grammar, vocabulary)
    return GuidanceGrammar(fit_grammar(grammar)[0], vocabulary)


def check_start(grammar: CompiledGrammar, vocab_size: int) -> None:
    """Raise GrammarError if no text can follow `grammar` up to its second token."""
    text = grammar.start()
    try:
        allowed = np.flatnonzero(unpack_masks(text.next(), vocab_size))
        if len(allowed) == 0:
            raise GrammarError("no text matches it")
        text.accept(allowed.item(-1))  # many limits are only met after the first token
        if not text.ended:
            text.next()
    except StepError as error:
        raise GrammarError(str(error)) from error


def start_after(grammar: CompiledGrammar, tokens: Sequence[int]) -> GuidanceMask | KbnfMask:
    """Return the grammar's token mask of a text that begins with `tokens`, advanced past them.

    Raises StepError if the grammar allows no such beginning, if the text ends with it, or if following it takes too
    long.
    """
    mask, begun = grammar.start(), time.thread_time()
    for token in tokens:
        mask.next()
        mask.accept(token)
        if (seconds := time.thread_time() - begun) > START_SECONDS:
            raise StepError(f"following them takes {seconds:.2g} s; at most {START_SECONDS:g} s are allowed")
    if mask.ended:
        raise StepError("the text of the grammar ends with them")
    return mask
