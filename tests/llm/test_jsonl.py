"""`LLM.map`: results in the source's order, resumption, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rnn_engine import LLM, SamplingParams
from rnn_engine.errors import InvalidRequestError

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, stop="\n\n")
PROMPT = "What is {a} + {b}?"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"id": n, "a": n, "b": 2 * n}) + "\n" for n in range(7)))
    return path


def test_each_line_gets_its_completion(llm: LLM, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "answers.jsonl"
    assert llm.map(source, target, PROMPT, PARAMS, chat=True, field="answer") == 7
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["id"] for line in found] == list(range(7))
    assert [line["answer"] for line in found] == [llm.chat(f"What is {n} + {2 * n}?", PARAMS).text for n in range(7)]


@pytest.mark.parametrize("whole", [0, 3, 7])
@pytest.mark.parametrize("torn", [b"", b'{"id": 3, "a'])
def test_an_interrupted_map_goes_on_after_its_last_whole_line(
    llm: LLM, source: Path, tmp_path: Path, whole: int, torn: bytes
) -> None:
    target = tmp_path / "answers.jsonl"
    llm.map(source, target, PROMPT, PARAMS)
    complete = target.read_bytes()
    target.write_bytes(b"".join(complete.splitlines(keepends=True)[:whole]) + torn)
    assert llm.map(source, target, PROMPT, PARAMS) == 7 - whole
    assert target.read_bytes() == complete


def test_what_is_wrong_is_told_with_its_line_before_anything_runs(llm: LLM, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "answers.jsonl"
    with pytest.raises(InvalidRequestError, match=r"prompt: .*\{c\}.* fields of line 1, which has id, a, b"):
        llm.map(source, target, "What is {c}?")
    source.write_text('{"a": 1, "b": 2}\nnonsense\n')
    with pytest.raises(InvalidRequestError, match="line 2: 'nonsense' is not allowed; expected a JSON object"):
        llm.map(source, target, PROMPT)
    assert not target.exists()
    source.write_text('{"a": 1, "b": 2}\n')
    target.write_text('{"a": 1, "b": 3, "completion": "4"}\n')
    with pytest.raises(InvalidRequestError, match="line 1 is the result of the source's line 1"):
        llm.map(source, target, PROMPT)
    assert target.read_text() == '{"a": 1, "b": 3, "completion": "4"}\n'
