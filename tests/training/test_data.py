"""Training data: the forms of records, the tokens that an answer follows, the held-out part, and what is odd."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnn_engine.backward import TrainingDocument
from rnn_engine.chat_template import ChatTemplate, WorldTemplate
from rnn_engine.chat_template.jinja import JinjaTemplate
from rnn_engine.demo import model_path
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.operations.chat_prompt import make_chat_prompt
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.training.data import DataSettings, TextMaker, count_held_out, read_data
from rnn_engine_server.apis.openai.schemas import ChatRequest
from tests.support.byte_tokenizer import ByteTokenizer


class SilentTokenizer(ByteTokenizer):
    """A tokenizer of bytes. Its special tokens stand for no bytes."""

    def decode_bytes(self, token: int) -> bytes:
        return b"" if token > 256 else super().decode_bytes(token)


DEMO = TextMaker(load_tokenizer("auto", model_path(), 2317), load_chat_template("auto", model_path()))
SETTINGS = DataSettings(1000)
BYTES = TextMaker(ByteTokenizer(), WorldTemplate())
END = "<|im_end|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' ~ message.role + '\n' ~ message['content'] ~ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)
QWEN = TextMaker(
    SilentTokenizer(special_tokens={END: 300, "<|im_start|>": 301}),
    JinjaTemplate(CHATML, {"eos_token": END}, stop_tokens=[END]),
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": {"properties": {"city": {}}}},
}
CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
ASKED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be\n\nbrief."},
    {"role": "user", "content": [{"type": "text", "text": "Rome?"}, {"type": "text", "text": " <|end|>"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "Sunny"},
    {"role": "assistant", "content": "It is sunny.\n\nVery."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "You are welcome."},
]


def write(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def documents(
    path: Path, records: Sequence[Any], maker: TextMaker = BYTES, settings: DataSettings = SETTINGS
) -> tuple[TrainingDocument, ...]:
    """Return the documents of records beside one other record, which is held out."""
    held_out = write(path / "held-out.jsonl", [{"text": "held out"}])
    return read_data(write(path / "data.jsonl", records), maker, replace(settings, held_out=held_out)).training


def learnt(document: TrainingDocument, maker: TextMaker = BYTES) -> list[str]:
    """Return the text of a document in pieces, those that are learnt in brackets."""
    edges = [0, *(np.flatnonzero(np.diff(document.weights)) + 1), len(document.tokens)]
    pieces = []
    for start, end in pairwise(edges):
        text = "".join(
            END if token == 300 else "" if token == 301 else maker.detokenize([token]).decode(errors="replace")
            for token in document.tokens[start:end].tolist()
        )
        pieces.append(f"[{text}]" if document.weights[start] else text)
    return pieces


CHAT = ["User: Hi\n\nAssistant:", "[ Ho\n\n]"]


@pytest.mark.parametrize(
    ("record", "pieces"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}], "id": 3}, CHAT),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}, CHAT),
        ({"instruction": "Hi", "input": "", "output": "Ho"}, CHAT),
        ({"instruction": "Hi", "input": "you", "output": "Ho"}, ["User: Hi\nyou\n\nAssistant:", "[ Ho\n\n]"]),
        ({"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Ho"}]}, CHAT),
        ({"prompt": "Once", "completion": " upon"}, ["Once", "[ upon]"]),
        ({"text": "Once upon"}, ["O", "[nce upon]"]),
    ],
)
def test_each_form(tmp_path: Path, record: object, pieces: list[str]) -> None:
    [document] = documents(tmp_path, [record])
    assert learnt(document) == pieces


def test_plain_text_has_a_document_for_each_paragraph(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbfOne\r\nline\n\n\n \nTwo\n\nThree")
    data = read_data(path, BYTES, SETTINGS)
    texts = sorted("".join(learnt(document)) for document in (*data.training, *data.held_out))
    assert texts == ["O[ne\nline]", "T[hree]", "T[wo]"]


def test_a_text_ends_with_the_token_that_ends_a_text(tmp_path: Path) -> None:
    [document] = documents(tmp_path, [{"text": "Hi"}])
    assert document.tokens.tolist() == [ord("H") + 1, ord("i") + 1, 0]
    [document] = documents(tmp_path, [{"text": "Hi"}], QWEN)  # in whose vocabulary 0 is plain text
    assert document.tokens.tolist() == [ord("H") + 1, ord("i") + 1, 300]


def test_answers_of_weight_0_are_not_learnt(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "weight": 0},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "weight": 1},
    ]
    [document] = documents(tmp_path, [{"messages": messages}])
    assert learnt(document) == ["User: a\n\nAssistant: b\n\nUser: c\n\nAssistant:", "[ d\n\n]"]


@pytest.mark.parametrize("maker", [DEMO, BYTES], ids=["demo", "bytes"])
def test_answers_follow_the_tokens_that_the_server_makes_of_the_conversation(tmp_path: Path, maker: TextMaker) -> None:
    [document] = documents(tmp_path, [{"messages": ASKED, "tools": [WEATHER]}], maker)
    starts = np.flatnonzero(np.diff(document.weights) > 0) + 1
    answers = [number for number, message in enumerate(ASKED) if message["role"] == "assistant"]
    for start, number in zip(starts, answers, strict=True):
        request = ChatRequest.parse(json.dumps({"messages": ASKED[:number], "tools": [WEATHER]}).encode())
        prompt = make_chat_prompt(maker, maker.template, request.conversation, 1 << 20)
        assert document.tokens[:start].tolist() == prompt.tokens


def test_a_stop_token_is_learnt_and_empty_thoughts_belong_to_the_prompt(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": f"b{END}"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    one, two = documents(tmp_path, [{"messages": messages}], QWEN)
    before = f"user\na{END}\nassistant\n"
    assert learnt(one, QWEN) == [before + "<think>\n\n</think>\n\n", f"[b{END}{END}]"]
    assert one.tokens.tolist().count(300) == 2  # of the template alone, and not the one that the answer spells
    assert learnt(two, QWEN)[0] == f"{before}b{END}{END}\nuser\nc{END}\nassistant\n<think>\n\n</think>\n\n"
    assert learnt(two, QWEN)[1:] == [f"[d{END}]"]


def test_a_template_without_an_end_gets_the_token_that_ends_a_text(tmp_path: Path) -> None:
    template: ChatTemplate = JinjaTemplate("{% for message in messages %}{{ message.content }}{% endfor %}:", {})
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    with pytest.raises(InvalidRequestError, match="line 1: messages: 'b' is not allowed; expected a conversation"):
        documents(tmp_path, [record], TextMaker(ByteTokenizer(), template))
    template = JinjaTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {})
    [document] = documents(tmp_path, [record], TextMaker(ByteTokenizer(), template))
    assert document.tokens.tolist() == [ord("a") + 1, ord("b") + 1, 0]


def test_a_held_out_share_is_the_same_for_the_same_records_in_any_order(tmp_path: Path) -> None:
    records = [{"text": f"number {number}"} for number in range(60)]
    tenth = replace(SETTINGS, held_out=0.1)
    one = read_data(write(tmp_path / "one.jsonl", records), BYTES, tenth)
    two = read_data(write(tmp_path / "two.jsonl", records[::-1]), BYTES, tenth)
    other = read_data(tmp_path / "one.jsonl", BYTES, replace(tenth, seed=1))
    texts = [{"".join(learnt(document)) for document in data.held_out} for data in (one, two, other)]
    assert len(texts[0]) == 6
    assert texts[0] == texts[1] != texts[2]
    assert len(one.training) == 54
    assert one.digest != two.digest


@pytest.mark.parametrize(
    ("records", "share", "held_out"),
    [
        *[(records, None, held_out) for records, held_out in ((2, 1), (10, 2), (30, 6), (40, 8), (160, 8), (200, 10))],
        *[(10_000, share, 256) for share in (None, 0.05)],
        *[(records, 0.05, held_out) for records, held_out in ((2, 1), (10, 1), (200, 10))],
    ],
)
def test_more_of_few_records_are_held_out(records: int, share: float | None, held_out: int) -> None:
    assert count_held_out(records, share) == held_out


def test_copies_of_a_held_out_record_are_not_learnt(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", [{"text": "one"}, {"text": "two"}] * 20)
    data = read_data(path, BYTES, SETTINGS)
    assert (len(data.training), len(data.held_out)) == (20, 1)
    assert data.report.duplicates.count == 38
    held_out = write(tmp_path / "held-out.jsonl", [{"text": "one"}])
    assert len(read_data(path, BYTES, replace(SETTINGS, held_out=held_out)).training) == 20


def test_one_record_is_too_few_for_a_share(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="has 1 different record to learn from; expected at least two"):
        read_data(write(tmp_path / "data.jsonl", [{"text": "one"}] * 3), BYTES, SETTINGS)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"held_out: .* expected a share between 0 and 1"):
        DataSettings(100, share)


def test_long_records_are_refused_left_out_or_cut(tmp_path: Path) -> None:
    long_answer = {"instruction": "a", "output": "b" * 100}
    long_question = {"instruction": "a" * 100, "output": "b"}
    short = DataSettings(50)
    records = [{"text": "fits"}, long_answer, {"text": "fits, too"}, long_question]
    with pytest.raises(InvalidRequestError, match="more than 50 tokens: 2: line 2; line 4; expected shorter ones"):
        documents(tmp_path, records, BYTES, short)
    assert len(documents(tmp_path, records, BYTES, replace(short, long_texts="skip"))) == 2
    cut = documents(tmp_path, records, BYTES, replace(short, long_texts="cut"))
    assert [document.num_inputs for document in cut] == [4, 50, 9]  # nothing is left to learn of the long question
    assert learnt(cut[1]) == ["User: a\n\nAssistant:", f"[ {'b' * 31}]"]


def test_what_is_odd_is_reported(tmp_path: Path) -> None:
    lines = [
        '{"text": "fine"}',
        "{",
        '{"instruction": "a", "output": " "}',
        '{"prompt": "a", "completion": ""}',
        '{"messages": [{"role": "user", "content": "a"}]}',
        '{"text": "fine"}',
        '{"text": "fine, too"}',
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines))
    report = read_data(path, BYTES, replace(SETTINGS, bad_lines="skip")).report
    assert (report.num_records, report.num_documents, report.num_tokens, report.num_learnt) == (3, 3, 20, 17)
    assert str(report.bad).startswith("1: line 2 is no JSON: ")
    assert str(report.empty) == "2: line 3, message 1; line 4"
    assert str(report.idle) == "3: line 3; line 4; line 5"
    assert str(report.duplicates) == "1: line 6"
    assert str(report.long) == "0"
