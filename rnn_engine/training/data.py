"""Make documents of a data file's examples, divide them into training and held-out parts, and report what is odd."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from rnn_engine.backward import TrainingDocument
from rnn_engine.chat_template import ChatMessage, ChatTemplate, Conversation
from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.chat_prompt import make_answer, make_chat_prompt
from rnn_engine.training.records import BadRecord, Chat, Text, parse_example, read_records
from rnn_engine.types import Tokenizer, end_of_text

BadLines: TypeAlias = Literal["error", "skip"]
LongTexts: TypeAlias = Literal["error", "skip", "cut"]

_MOST_LISTED: Final = 10  # places of each kind in a report
_SHARE: Final = 0.05  # of the records, that is held out unless the settings say otherwise
_LEAST_HELD_OUT: Final = 8  # records then, since the loss of fewer says little
_MOST_SHARE: Final = 0.2  # then, since few records are all needed for learning
_MOST_HELD_OUT: Final = 256  # records that a share holds out, since each judgement runs them all
_MOST_ADDED: Final = 1 << 16  # characters that a chat template writes around the messages


@dataclass(frozen=True, slots=True)
class TextMaker:
    """Makes the tokens of training data as the server does: a tokenizer and a chat template, without an engine."""

    tokenizer: Tokenizer
    template: ChatTemplate
    before: str = ""  # what the server writes before a chat, after a state that has taken in a text

    @property
    def info(self) -> Tokenizer:
        return self.tokenizer

    def tokenize(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.tokenizer.decode_bytes, tokens))


@dataclass(frozen=True, slots=True)
class DataSettings:
    """How data is read: the longest document, the held-out part, and what becomes of odd records."""

    max_tokens: int  # the most inputs of a document
    held_out: Path | float | None = None  # a file, or the share of the records; None: as `count_held_out` says
    seed: int = 0  # chooses the records that are held out
    bad_lines: BadLines = "error"
    long_texts: LongTexts = "error"  # cut: learn only from the beginning

    def __post_init__(self) -> None:
        if isinstance(self.held_out, float | int) and not 0 < self.held_out < 1:
            raise InvalidRequestError("held_out", self.held_out, "a share between 0 and 1, or the path of a file")


@dataclass(slots=True)
class Oddities:
    """The number of records of one kind, and the places of the first of them."""

    count: int = 0
    listed: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.listed) < _MOST_LISTED:
            self.listed.append(place)

    def __str__(self) -> str:
        more = "; ..." if self.count > len(self.listed) else ""
        return f"{self.count}: {'; '.join(self.listed)}{more}" if self.count else "0"


@dataclass(slots=True)
class DataReport:
    """What is in a data file: how many records, documents and tokens, and what is odd."""

    num_records: int = 0  # that can be used
    num_documents: int = 0
    num_tokens: int = 0
    num_learnt: int = 0  # tokens that count in the loss
    bad: Oddities = field(default_factory=Oddities)  # can't be read
    long: Oddities = field(default_factory=Oddities)  # longer than a document may be
    empty: Oddities = field(default_factory=Oddities)  # answers without a text, which are not learnt
    idle: Oddities = field(default_factory=Oddities)  # have nothing to learn
    duplicates: Oddities = field(default_factory=Oddities)  # of an earlier record


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Documents to learn from and documents to judge by, no record of which is in the other part."""

    training: tuple[TrainingDocument, ...]
    held_out: tuple[TrainingDocument, ...]
    report: DataReport
    held_out_report: DataReport | None  # None if the held-out part is a share of the file
    digest: str  # of all documents in their order


@dataclass(frozen=True, slots=True)
class _Group:
    """The documents of one record. Equal records have equal digests."""

    documents: tuple[TrainingDocument, ...]
    digest: bytes


def read_data(path: Path, maker: TextMaker, settings: DataSettings) -> TrainingData:
    """Read a file with training data, and hold a part of it out.

    Raises InvalidRequestError if a file can't be read, and for records that can't be used or are too long unless the
    settings say what to do with them. The message lists their lines.
    """
    groups, report = _read_groups(path, maker, settings)
    if isinstance(settings.held_out, Path):
        held_out, held_out_report = _read_groups(settings.held_out, maker, settings)
        chosen = {group.digest for group in held_out}
    else:
        held_out_report = None
        chosen = _choose(path, groups, settings.held_out, settings.seed)
        held_out = list({group.digest: group for group in groups if group.digest in chosen}.values())
    training = [group for group in groups if group.digest not in chosen]
    if not training:
        raise InvalidRequestError("data", str(path), f"records that {settings.held_out} does not have, too")
    digest = hashlib.blake2b(digest_size=16)
    for group in (*training, *held_out):
        digest.update(group.digest)
    return TrainingData(
        tuple(document for group in training for document in group.documents),
        tuple(document for group in held_out for document in group.documents),
        report,
        held_out_report,
        digest.hexdigest(),
    )


def count_held_out(num_records: int, share: float | None = None) -> int:
    """Return how many records are held out: at least one; for None a twentieth or 8, but at most a fifth."""
    if share is None:
        least = min(_LEAST_HELD_OUT, round(_MOST_SHARE * num_records))
        return max(least, count_held_out(num_records, _SHARE))
    return min(max(1, round(share * num_records)), _MOST_HELD_OUT)


def _choose(path: Path, groups: Sequence[_Group], share: float | None, seed: int) -> set[bytes]:
    """Return the digests of the records to hold out: the same for the same records, whatever their order."""
    digests = {group.digest for group in groups}
    if len(digests) < 2:
        message = (
            f"{path} has {len(digests)} different record{'s' if len(digests) != 1 else ''} to learn from; expected at "
            "least two, one of which is held out"
        )
        raise InvalidRequestError("data", str(path), "at least two different records", message)
    count = count_held_out(len(digests), share)
    return set(sorted(digests, key=lambda digest: hashlib.blake2b(digest + str(seed).encode()).digest())[:count])


def _read_groups(path: Path, maker: TextMaker, settings: DataSettings) -> tuple[list[_Group], DataReport]:
    report, groups, seen = DataReport(), list[_Group](), set[bytes]()
    for record in read_records(path):
        if isinstance(record, BadRecord):
            report.bad.add(f"{record.place} {record.reason}")
            continue
        try:
            documents, is_long = _make_documents(record.value, record.place, maker, settings, report)
        except InvalidRequestError as error:
            report.bad.add(f"{record.place}: {error}")
            continue
        except RecursionError:
            report.bad.add(f"{record.place} is nested too deeply")
            continue
        if is_long:
            report.long.add(record.place)
        if not documents:
            if not is_long:
                report.idle.add(record.place)
            continue
        group = _Group(documents, _digest(documents))
        if group.digest in seen:
            report.duplicates.add(record.place)
        seen.add(group.digest)
        groups.append(group)
        report.num_records += 1
        report.num_documents += len(documents)
        report.num_tokens += sum(len(document.tokens) for document in documents)
        report.num_learnt += sum(int(np.count_nonzero(document.weights)) for document in documents)
    _check(path, report, settings)
    return groups, report


def _check(path: Path, report: DataReport, settings: DataSettings) -> None:
    if report.bad.count and settings.bad_lines == "error":
        message = f"{path}: records that can't be used: {report.bad}; mend them, or leave them out with bad_lines=skip"
        raise InvalidRequestError("data", str(path), "records of a known form", message)
    if report.long.count and settings.long_texts == "error":
        message = (
            f"{path}: records with more than {settings.max_tokens} tokens: {report.long}; expected shorter ones, a "
            "greater max_tokens, or long_texts=skip or cut"
        )
        raise InvalidRequestError("data", str(path), f"at most {settings.max_tokens} tokens a record", message)
    if report.num_records == 0:
        bad = f": records that can't be used: {report.bad}" if report.bad.count else ""
        message = f"{path} has nothing to learn{bad}; expected at least one answer or text"
        raise InvalidRequestError("data", str(path), "at least one answer or text", message)


def _make_documents(
    value: object, place: str, maker: TextMaker, settings: DataSettings, report: DataReport
) -> tuple[tuple[TrainingDocument, ...], bool]:
    """Return the documents of one record, and True if it is too long: then it has fewer of them, cut ones, or none."""
    match parse_example(value):
        case Text() as text:
            found: Iterable[TrainingDocument] = ()
            if text.completion.strip():
                learnt = [*maker.tokenize(text.completion), end_of_text(maker.tokenizer.special_tokens)]
                found = [_document(maker.tokenize(text.prompt), learnt)]
            elif text.prompt:
                report.empty.add(place)
        case Chat() as chat:
            found = _chat_documents(chat, place, maker, settings.max_tokens, report)
    documents, is_long = [], False
    for document in found:
        if document.num_inputs > settings.max_tokens:
            is_long = True
            end = settings.max_tokens + 1
            document = TrainingDocument(document.tokens[:end], document.weights[:end])
        if document.num_inputs > 0 and document.weights.any():
            documents.append(document)
    return () if is_long and settings.long_texts != "cut" else tuple(documents), is_long


def _chat_documents(
    chat: Chat, place: str, maker: TextMaker, max_tokens: int, report: DataReport
) -> Iterator[TrainingDocument]:
    """Yield the documents of a conversation, which together teach all its answers.

    One is enough as long as the prompt of each answer begins with what the model has read and written before.
    Otherwise another one begins, such as after thoughts: templates leave them out of later prompts.
    """
    document: TrainingDocument | None = None
    for number in chat.learnt:
        answer = chat.messages[number]
        if not answer.content.strip() and not answer.tool_calls:
            report.empty.add(f"{place}, message {number}")
            continue
        prompt, written = _make_turn(chat, number, answer, maker)
        if document is not None and not np.array_equal(prompt[: len(document.tokens)], document.tokens):
            yield document
            document = None
        document = _document(prompt, written, document)
        if document.num_inputs > max_tokens:
            break
    if document is not None:
        yield document


def _make_turn(chat: Chat, number: int, answer: ChatMessage, maker: TextMaker) -> tuple[list[int], list[int]]:
    """Return the tokens of the prompt of message `number`, and those with which the model answers."""
    conversation = Conversation(chat.messages[:number], chat.tools)
    most = 2 * (conversation.characters + len(answer.content)) + _MOST_ADDED
    prompt = make_chat_prompt(maker, maker.template, conversation, most, before=maker.before)
    return prompt.tokens, make_answer(maker, maker.template, conversation, answer, most)


def _document(prompt: Sequence[int], learnt: Sequence[int], begins: TrainingDocument | None = None) -> TrainingDocument:
    """Return the document of a prompt and of tokens to learn after it; the prompt begins with the document `begins`."""
    weights = np.zeros(len(prompt) + len(learnt), np.float32)
    weights[len(prompt) :] = 1.0
    weights[0] = 0.0
    if begins is not None:
        weights[: len(begins.weights)] = begins.weights
    return TrainingDocument(np.array([*prompt, *learnt], np.int32), weights)


def _digest(documents: Sequence[TrainingDocument]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        digest.update(document.tokens.tobytes())
        digest.update(document.weights.tobytes())
    return digest.digest()
