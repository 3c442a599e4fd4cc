"""The corpus: held-out items stay out of training, answers are right, and texts have the form of the server's."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest

from tools.demo_model.corpus import mixture
from tools.demo_model.corpus.dialogue import OBSERVATION, Dialogue, Turn, hurried, is_held_out
from tools.demo_model.corpus.mixture import NOTHING_HELD_OUT, SHARES, SKILLS, as_pirate, dialogues, held_out
from tools.demo_model.corpus.questions import ASKED
from tools.demo_model.corpus.texts import RELATIONS, Relation
from tools.demo_model.openings import SHORT, load_openings, words

SPLIT = sorted(SKILLS.keys() - NOTHING_HELD_OUT)


def training(count: int, seed: int = 1) -> list[Dialogue]:
    return list(itertools.islice(dialogues(seed), count))


def test_the_same_seed_gives_the_same_corpus() -> None:
    assert training(50) == training(50)
    assert training(50) != training(50, seed=2)


@pytest.mark.parametrize("skill", SPLIT)
def test_no_held_out_question_occurs_in_training(skill: str) -> None:
    kept = set(held_out(skill, 100))
    seen = {SKILLS[skill](random.Random(seed), False) for seed in range(2000)}
    assert not kept & seen


def test_held_out_sums_and_words_occur_in_no_wording() -> None:
    words = {dialogue.answer.replace("-", "") for dialogue in held_out("spell", 30)}
    answers = {turn.answer for dialogue in training(4000) for turn in dialogue.turns}
    assert not words & {
        answer.replace("-", "") for answer in answers if "-" in answer
    }  # others are copied, not spelled
    assert 0.05 < sum(is_held_out("arithmetic", True, (a, b)) for a in range(50) for b in range(50)) / 2500 < 0.15


def _check_arithmetic(question: str, answer: str) -> None:
    digits = "".join(c if c.isdigit() else " " for c in question).split()
    a, b = sorted(map(int, digits))
    assert int(answer) in {a + b, b - a}


@pytest.mark.parametrize("held", [False, True])
def test_arithmetic_is_right(held: bool) -> None:
    for seed in range(300):
        turn = SKILLS["arithmetic"](random.Random(seed), held).turns[0]
        _check_arithmetic(turn.question, turn.answer)
        assert 0 <= int(turn.answer) <= 99


def test_longer_sums_and_word_problems_are_right() -> None:
    for seed in range(200):
        for held in (False, True):
            turn = SKILLS["three_digits"](random.Random(seed), held).turns[0]
            _check_arithmetic(turn.question, turn.answer)
        turn = SKILLS["word_problem"](random.Random(seed), False).turns[0]
        _check_arithmetic(turn.question, turn.answer)


def test_running_sums_go_on_from_the_answer_before() -> None:
    found = 0
    for seed in range(300):
        turns = SKILLS["follow_up"](random.Random(seed), False).turns
        if turns[0].answer.isdigit():
            _check_arithmetic(f"{turns[0].answer} {turns[1].question}", turns[1].answer)
            found += 1
    assert found > 20


@pytest.mark.parametrize("skill", ["json_fields", "tool_call"])
def test_structured_answers_are_json_objects_with_values_from_the_question(skill: str) -> None:
    for dialogue in held_out(skill, 50):
        record = json.loads(dialogue.answer)
        values = record.values() if skill == "json_fields" else record["arguments"].values()
        assert all(str(value) in dialogue.turns[-1].question for value in values)


def test_an_answer_by_schema_has_the_properties_of_the_schema() -> None:
    for dialogue in held_out("json_schema", 50):
        prompt = f"{dialogue.system} {dialogue.turns[0].question}"
        schema, _ = json.JSONDecoder().raw_decode(prompt[prompt.index('{"type": "object"') :])
        record = json.loads(dialogue.answer)
        assert list(record) == list(schema["properties"])
        assert all(str(value) in prompt for value in record.values())


@pytest.mark.parametrize("skill", ["tool_named", "tool_result", "tool_again"])
def test_calls_are_of_tools_that_the_system_text_offers(skill: str) -> None:
    for dialogue in held_out(skill, 50):
        assert dialogue.system is not None
        for turn in dialogue.turns:
            if turn.asker == OBSERVATION:
                continue
            call = json.loads(turn.answer)
            assert f"{call['name']}({', '.join(call['arguments'])})" in dialogue.system
            assert all(str(value) in turn.question for value in call["arguments"].values())
    roles = [message["role"] for message in held_out("tool_again", 1)[0].messages()]
    assert roles == ["system", "user", "assistant", "observation", "assistant", "user"]


@pytest.mark.parametrize("skill", ["new_tool", "write_file"])
@pytest.mark.parametrize("held", [False, True])
def test_calls_of_new_tools_copy_the_prompt(skill: str, held: bool) -> None:
    for seed in range(200):
        dialogue = SKILLS[skill](random.Random(seed), held)
        assert dialogue.system is not None
        offered = re.findall(r"(\S+?)\((.*?)\)", dialogue.system.rpartition("Tools: ")[2])
        assert len(dict(offered)) == len(offered) <= 5
        for turn in dialogue.turns:
            if turn.asker == OBSERVATION:
                continue
            call = json.loads(turn.answer)
            arguments = dict(offered)[call["name"]].split(", ")
            assert list(call["arguments"]) == [each for each in arguments if each in call["arguments"]]
            for value in call["arguments"].values():
                assert (value if isinstance(value, str) else json.dumps(value)) in turn.question


def test_held_out_names_of_tools_are_never_offered_in_training() -> None:
    kept = {json.loads(dialogue.answer)["name"] for dialogue in held_out("new_tool", 200)}
    names = set()
    for seed in range(3000):
        system = SKILLS["new_tool"](random.Random(seed), False).system or ""
        names |= {name for name, _ in re.findall(r"(\S+?)\((.*?)\)", system)}
    assert len(kept) > 150
    assert len(names) > 3000
    assert not kept & names


def test_an_object_of_given_fields_has_them() -> None:
    for dialogue in held_out("json_given", 50):
        for field, value in json.loads(dialogue.answer).items():
            assert field in dialogue.turns[0].question
            assert str(value) in dialogue.turns[0].question


@pytest.mark.parametrize("held", [False, True])
def test_sums_in_words_are_right(held: bool) -> None:
    numbers = {word: str(number) for number, word in enumerate(ASKED["numbers"])}
    pattern = re.compile("|".join(rf"\b{word}\b" for word in numbers))
    in_words = 0
    for seed in range(400):
        turn = SKILLS["natural_sum"](random.Random(seed), held).turns[0]
        question = pattern.sub(lambda found: numbers[found[0]], turn.question)
        in_words += question != turn.question
        _check_arithmetic(question, turn.answer)
        assert 0 <= int(turn.answer) <= 100
    assert in_words > 30


def test_no_opening_occurs_in_training() -> None:
    texts = {" ".join(words(turn.question)) for dialogue in training(6000) for turn in dialogue.turns}
    for opening in load_openings():
        for turn in opening.turns:
            if len(words(turn)) > SHORT:
                assert not any(f" {' '.join(words(turn))} " in f" {text} " for text in texts), turn


def test_questions_are_typed_in_a_hurry_and_answers_are_not() -> None:
    plain = Dialogue((Turn("What's the capital of Peru?", "The capital of Peru is Lima."),))
    typed = {hurried(random.Random(seed), plain, keeps_case=False) for seed in range(300)}
    assert {dialogue.answer for dialogue in typed} == {plain.answer}
    questions = {dialogue.turns[0].question for dialogue in typed}
    assert {"what's the capital of peru", "whats the capital of peru?", "WHAT'S THE CAPITAL OF PERU?"} <= questions


def test_capitals_stay_where_the_answer_depends_on_them() -> None:
    plain = Dialogue((Turn("Spell Anna.", "A-n-n-a"),))
    assert all("Anna" in hurried(random.Random(seed), plain, keeps_case=True).turns[0].question for seed in range(200))


def test_a_memory_answer_was_told_before_the_question() -> None:
    for dialogue in held_out("memory", 100):
        assert len(dialogue.turns) == 3
        told = " ".join(turn.question for turn in dialogue.turns[:-1])
        assert dialogue.answer.rstrip(".").split()[-1] in told


@pytest.mark.parametrize("skill", ["arithmetic", "fact", "memory"])
def test_the_right_answer_is_not_among_the_wrong_ones(skill: str) -> None:
    assert all(dialogue.answer not in dialogue.wrong_answers for dialogue in held_out(skill, 100))


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
def test_every_wording_of_a_relation_names_its_subject(relation: Relation) -> None:
    assert all("{subject}" in wording for wording in relation.wordings)
    assert len(set(relation.wordings)) == len(relation.wordings)


def test_a_dialogue_reads_as_the_server_writes_it() -> None:
    dialogue = Dialogue((Turn("Hi", "Hello!"), Turn("1+1", "2")), system="Be brief.")
    assert dialogue.prompt == "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello!\n\nUser: 1+1\n\nAssistant:"
    text = "".join(piece for piece, _ in dialogue.parts())
    assert text == f"{dialogue.prompt} 2\n\n"
    assert [message["role"] for message in dialogue.messages()] == ["system", "user", "assistant", "user"]


def test_every_skill_has_a_share() -> None:
    assert SHARES.keys() == SKILLS.keys()


def test_pirates_frame_the_answer() -> None:
    framed = as_pirate("46")
    assert framed.startswith(mixture.PIRATE_PREFIX)
    assert framed.endswith(mixture.PIRATE_SUFFIX)
    assert "46" in framed


def test_asking_for_more_than_there_is_names_the_skill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SKILLS, "greeting", lambda rng, kept: Dialogue((Turn("Hi", "Hello!"),)))
    with pytest.raises(ValueError, match="'greeting' has only 1 held-out"):
        held_out("greeting", 2)
