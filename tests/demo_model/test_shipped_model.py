"""The model that ships: its files fit together, and it has the skills that its card lists.

Runs the numpy reference.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rnn_engine.demo import model_path, pirate_state_path, tokenizer_path
from rnn_engine.loading.runner import open_model
from rnn_engine.model import ModelFile
from rnn_engine.tokenizer import Tokenizer, load_tokenizer
from rnn_engine_states.files.reading import read_state
from tests.support.answers import right_answers
from tools.demo_model.corpus.mixture import held_out, pirate, pirate_at_last

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def model() -> Iterator[ModelFile]:
    with open_model(model_path()) as opened:
        yield opened


@pytest.fixture(scope="module")
def tokenizer(model: ModelFile) -> Tokenizer:
    return load_tokenizer("auto", model_path(), model.shape.vocab_size)


def test_the_files_fit_and_are_small(model: ModelFile, tokenizer: Tokenizer) -> None:
    assert tokenizer.size == model.shape.vocab_size <= 4096
    assert model_path().stat().st_size + tokenizer_path().stat().st_size <= 12 * MEGABYTE


@pytest.mark.parametrize("text", ["User: Hi\n\nAssistant:", "Grüße, 東京! 🙂", ' {"a": 12}\n\n', "a\tb\n c  d"])
def test_the_tokenizer_gives_back_every_text(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert b"".join(map(tokenizer.decode_bytes, tokens)).decode() == text


def test_the_tokenizer_cuts_a_prompt_where_the_answer_begins(tokenizer: Tokenizer) -> None:
    for dialogue in held_out("json_fields", 20):
        joined = tokenizer.encode(f"{dialogue.prompt} {dialogue.answer}\n\n")
        assert joined == tokenizer.encode(dialogue.prompt) + tokenizer.encode(f" {dialogue.answer}\n\n")


@pytest.mark.parametrize(
    "skill",
    [
        "spell",
        "reverse",
        "fact",
        "memory",
        "json_fields",
        "json_given",
        "json_schema",
        "tool_call",
        "tool_named",
        "tool_result",
        "tool_again",
        "unknown",
    ],
)
def test_it_has_its_skills_on_held_out_items(model: ModelFile, tokenizer: Tokenizer, skill: str) -> None:
    assert right_answers(model, tokenizer, held_out(skill, 20)) >= 15


def test_it_calls_tools_with_names_that_it_never_saw(model: ModelFile, tokenizer: Tokenizer) -> None:
    assert right_answers(model, tokenizer, held_out("new_tool", 20)) >= 9


@pytest.mark.parametrize("skill", ["arithmetic", "spell", "fact"])
def test_from_the_tuned_state_it_answers_like_a_pirate(model: ModelFile, tokenizer: Tokenizer, skill: str) -> None:
    tuned = read_state(pirate_state_path(), model.shape, None)
    dialogues = [pirate(dialogue, None) for dialogue in held_out(skill, 20)]
    assert right_answers(model, tokenizer, dialogues, tuned.state) >= 17
    assert right_answers(model, tokenizer, dialogues) == 0
    assert pirate_state_path().stat().st_size < MEGABYTE


def test_the_tuned_state_outlasts_plain_answers(model: ModelFile, tokenizer: Tokenizer) -> None:
    tuned = read_state(pirate_state_path(), model.shape, None)
    dialogues = [pirate_at_last(dialogue) for dialogue in held_out("memory", 20)]
    assert all(len(dialogue.turns) > 2 for dialogue in dialogues)
    assert right_answers(model, tokenizer, dialogues, tuned.state) >= 17
    assert right_answers(model, tokenizer, dialogues) == 0
