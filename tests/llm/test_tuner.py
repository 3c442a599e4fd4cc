"""`Tuner`: a run over a file with a real model, its state at any moment, files, prompts and checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rnn_engine import LLM, State, Tuner, TunerSettings
from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.demo import tokenizer_path
from rnn_engine.errors import InvalidRequestError, StateError
from rnn_engine.loading.settings import LoraSettings
from rnn_engine.model import LoraChoice
from rnn_engine.operations.chat_prompt import prompt_after
from rnn_engine.tensor_files.safetensors_file import SafetensorsFile
from rnn_engine.tensor_files.source import BinaryFile
from rnn_engine.training.tuner import Event, Judged, Updated
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.frozen import freeze_lora, freeze_state
from tests.support.models import random_model, save_safetensors, tiny_shape

SETTINGS = TunerSettings(steps=4, batch_size=3, rate=1.0, warm_up=1)
ANSWERS = ["Arr! Four.", "Arr! Hello.", "Arr! Blue.", "Arr! Yes."]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", ANSWERS)


def write(path: Path, answers: Sequence[str]) -> Path:
    records = [{"instruction": f"Question {number}", "output": answer} for number, answer in enumerate(answers)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def tuner(data: Path, settings: TunerSettings = SETTINGS, **options: object) -> Tuner:
    options = {"device": "cpu", "held_out": 0.25, "max_tokens": 100, **options}
    return Tuner(data, settings=settings, **options)  # type: ignore[arg-type]


def test_a_run_makes_the_answers_likelier_and_its_state_starts_chats(data: Path, tmp_path: Path, llm: LLM) -> None:
    events: list[Event] = []
    with tuner(data) as running:
        assert not any(values.any() for values in running.best.values())
        best = running.run(events.append)
        assert [type(event) for event in events].count(Updated) == 4
        judged = [event for event in events if isinstance(event, Judged)]
        assert judged[-1].held_out_loss < 0.8 * judged[0].held_out_loss
        assert best == running.best
        assert (running.is_finished, running.rate, running.judged) == (True, 1.0, tuple(judged))
        running.save(tmp_path / "pirate.safetensors")
    state = llm.load_state(tmp_path / "pirate.safetensors")
    assert np.array_equal(state["wkv"], best["wkv"])
    assert state.num_tokens == 0
    [document] = running.data.held_out
    prompt, answer = np.split(document.tokens, [int(np.argmax(document.weights > 0))])
    [score] = llm.score([(prompt.tolist(), answer.tolist())], state=state)
    best_loss = min(judgement.held_out_loss for judgement in judged)
    assert -score.total / len(answer) == pytest.approx(best_loss, rel=1e-4)  # by the engine's own forward pass


def test_the_state_is_at_hand_between_events(data: Path) -> None:
    with tuner(data) as running:
        norms = [(running.state.norm(), running.best.norm()) for _ in running.events()]
    assert norms[0] == (0.0, 0.0)
    assert len({state for state, _ in norms}) == 5


def test_the_file_of_a_run_says_its_model(data: Path, tmp_path: Path) -> None:
    other = save_safetensors(random_model(tiny_shape(layers=6, width=128, head_size=32), seed=1), tmp_path / "o.st")
    path = tmp_path / "a.state"
    with tuner(data, TunerSettings(steps=1, rate=0.1)) as running:
        for name in ("a.st", "a.pth", "a.state", "a.safetensors"):
            running.save(tmp_path / name)
            assert State.read(tmp_path / name, running.state_files) == running.best
        with pytest.raises(InvalidRequestError, match=r"output: .* expected a name that ends in .safetensors"):
            running.save(tmp_path / "a.bin")
    with pytest.raises(StateError, match=r"a.state: the state belongs to model"):
        Tuner(data, other, device="cpu", tokenizer="none", init=path)


def test_shifts_are_trained_and_need_a_file_that_has_them(data: Path, tmp_path: Path) -> None:
    with tuner(data, train_shifts=True) as running:
        running.run()
        assert running.best["att_shift"].any()
        for name in ("a.st", "a.pth", "a.safetensors"):
            with pytest.raises(StateError, match=f"{name}: a file of tuned matrices has no token shifts"):
                running.save(tmp_path / name)
        running.save(tmp_path / "a.state")
        assert State.read(tmp_path / "a.state", running.state_files) == running.best


@pytest.mark.parametrize("options", [{"init_prompt": "Talk like a pirate."}, {"train_shifts": True}, {}])
def test_examples_are_learnt_as_chats_run_that_start_from_the_state(
    data: Path, tmp_path: Path, llm: LLM, options: dict[str, object]
) -> None:
    """Whatever the server writes between a state and a chat is in the documents, too."""
    with tuner(data, TunerSettings(steps=1, rate=0.1), **options) as running:
        running.run()
        running.save(tmp_path / "a.state")
        prompts = {bytes(document.tokens[: np.argmax(document.weights > 0)]) for document in running.data.training}
        question = json.loads(data.read_text().splitlines()[0])["instruction"]
        state = llm.load_state(tmp_path / "a.state")
        tokens = prompt_after(llm.engine, state.frozen, Conversation([ChatMessage(Role.USER, question)])).tokens
        held_out = {bytes(document.tokens[: np.argmax(document.weights > 0)]) for document in running.data.held_out}
        assert bytes(np.array(tokens, np.int32)) in prompts | held_out


def test_a_prompt_is_read_before_the_examples(data: Path, llm: LLM) -> None:
    with tuner(data, init_prompt="Talk like a pirate.") as running:
        expected = llm.state("Talk like a pirate.\n\n")
        for name, values in expected.items():
            assert np.allclose(running.start[name], values, atol=1e-5)
        assert running.start.num_tokens == expected.num_tokens


def test_a_run_goes_on_from_its_checkpoint(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    with tuner(data) as whole:
        best = whole.run()
    with tuner(data, checkpoint=path) as running:
        list(islice(running.events(), 4))
    with tuner(data, checkpoint=path, resume=True) as running:
        assert running.judged
        assert running.run() == best
    with tuner(data, checkpoint=path, resume=True, weights="f32") as running:
        assert running.is_finished
        assert running.best == best
    write(data, [*ANSWERS, "More."])
    with pytest.raises(StateError, match=r"run.checkpoint: belongs to a run with data '.*'; this one has"):
        tuner(data, checkpoint=path, resume=True)


def test_a_checkpoint_is_written_as_often_as_wanted(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    written = []
    for seconds in (0.0, 1e9):
        with tuner(data, checkpoint=path, checkpoint_seconds=seconds) as running:
            written.append([path.exists() for _ in islice(running.events(), 3)])
        path.unlink()
    assert written == [[False, True, True], [False] * 3]


def test_a_run_without_a_checkpoint_does_not_go_on(data: Path) -> None:
    with pytest.raises(InvalidRequestError, match="resume: True is not allowed; expected false"):
        tuner(data, resume=True)


LORA = LoraSettings(rank=3, alpha=5.0, targets=("att", "ffn.value"))
PISSA = replace(LORA, init="pissa")
BOTH = replace(PISSA, train_state=True)
VECTORS = replace(LORA, train_vectors=True)
LORA_SETTINGS = replace(SETTINGS, rate=0.01)


@pytest.mark.parametrize("settings", [LORA, PISSA, VECTORS])
def test_a_lora_is_trained_and_its_file_gives_the_model_the_loss_of_the_run(
    data: Path, tmp_path: Path, settings: LoraSettings
) -> None:
    paths = tmp_path / "a.safetensors", tmp_path / "a.pth"
    rank, alpha = (6, 10.0) if settings is PISSA else (3, 5.0)
    with tuner(data, LORA_SETTINGS, lora=settings) as running:
        state = running.run()
        assert not any(values.any() for values in state.values())
        losses = [judged.held_out_loss for judged in running.judged]
        assert min(losses) < 0.9 * losses[0]
        for path in paths:
            running.save(path)
        folder = [] if settings.train_vectors else [LoraChoice(tmp_path / "a")]
        for choice in folder:
            running.save(choice.path)
        assert running.pairs["blocks.0.att.key.lora_A"].shape == (rank, state.shape.width)
        assert "blocks.0.ffn.key.lora_A" not in running.pairs
        assert running.pairs.keys() == load_file(paths[0]).keys()
    [document] = running.data.held_out
    prompt, answer = np.split(document.tokens, [int(np.argmax(document.weights > 0))])
    texts = [(prompt.tolist(), answer.tolist())]
    for lora in (LoraChoice(paths[0]), LoraChoice(paths[1], alpha), *folder):
        with LLM(device="cpu", num_slots=1, loras=[lora], cache=None) as merged:
            [score] = merged.score(texts)
        assert -score.total / len(answer) == pytest.approx(min(losses), rel=1e-4)
    with LLM(device="cpu", num_slots=1, max_loras=1, max_lora_rank=rank, cache=None) as beside:
        if settings.train_vectors:
            assert state.lora is None
            with pytest.raises(StateError, match=r"it changes .*\.\w+; expected only pairs .*, or --lora to merge it"):
                beside.load_state(paths[0])
            return
        scores = [*beside.score(texts), *beside.score(texts, state=state)]
        assert beside.load_state(paths[0]) == state
    found = [-score.total / len(answer) for score in scores]
    assert found == pytest.approx([losses[0], min(losses)], rel=1e-4)
    with closing(SafetensorsFile(BinaryFile(paths[0]))) as source:
        metadata = source.metadata
    assert (metadata["rank"], metadata["alpha"], metadata["targets"]) == (str(rank), str(alpha), "att,ffn.value")
    assert json.loads(metadata["run"])["model"] == running.state_files.model


def test_a_lora_and_a_state_are_trained_together_and_are_one_file(data: Path, tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "both.state", tmp_path / "run.checkpoint"
    with tuner(data, LORA_SETTINGS, lora=BOTH) as whole:
        best = whole.run()
        losses = [judged.held_out_loss for judged in whole.judged]
        assert [name for name, values in best.items() if values.any()] == ["wkv"]
        assert best.num_tokens == 0
        whole.save(path)
        with pytest.raises(InvalidRequestError, match=r"expected a name that ends in \.state"):
            whole.save(tmp_path / "both.safetensors")
    with tuner(data, LORA_SETTINGS, lora=BOTH, checkpoint=checkpoint) as running:
        list(islice(running.events(), 4))
    with tuner(data, LORA_SETTINGS, lora=BOTH, checkpoint=checkpoint, resume=True) as running:
        assert running.run() == best
    [document] = whole.data.held_out
    prompt, answer = np.split(document.tokens, [int(np.argmax(document.weights > 0))])
    with LLM(device="cpu", num_slots=1, max_loras=1, max_lora_rank=6, cache=None) as llm:
        state = llm.load_state(path)
        assert state == best
        [score] = llm.score([(prompt.tolist(), answer.tolist())], state=state)
    assert -score.total / len(answer) == pytest.approx(min(losses), rel=1e-4)


def test_the_state_beside_a_lora_may_start_from_a_text(data: Path) -> None:
    with tuner(data, LORA_SETTINGS, lora=replace(LORA, train_state=True), init_prompt="Talk like a pirate.") as running:
        assert running.start["wkv"].any()
        assert np.array_equal(running.best["wkv"], running.start["wkv"])


@pytest.mark.parametrize("settings", [LORA, PISSA, VECTORS])
def test_a_lora_goes_on_from_its_checkpoint_and_only_with_its_model(
    data: Path, tmp_path: Path, settings: LoraSettings
) -> None:
    path = tmp_path / "run.checkpoint"
    with tuner(data, LORA_SETTINGS, lora=settings) as whole:
        whole.run()
    with tuner(data, LORA_SETTINGS, lora=settings, checkpoint=path) as running:
        list(islice(running.events(), 4))
    with tuner(data, LORA_SETTINGS, lora=settings, checkpoint=path, resume=True) as running:
        running.run()
        for name, values in whole.pairs.items():
            assert np.array_equal(values, running.pairs[name])
    shape = tiny_shape(layers=1, width=32, head_size=16, vocab=running.state_files.shape.vocab_size)
    other = save_safetensors(random_model(shape, seed=1), tmp_path / "o.st")
    with pytest.raises(StateError, match=r"run.checkpoint: belongs to a run with model '.*'; this one has"):
        tuner(
            data,
            LORA_SETTINGS,
            model=other,
            tokenizer=str(tokenizer_path()),
            lora=settings,
            checkpoint=path,
            resume=True,
        )


def test_a_lora_has_no_settings_of_a_state(data: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"lora: .* expected none, since the settings of a state are given"):
        tuner(data, lora=LORA, init_prompt="Talk like a pirate.")
    for settings in (
        {"rank": 0},
        {"rank": 10_000},
        {"rank": 257, "init": "pissa"},
        {"state_rate": 0.0},
        {"alpha": math.nan},
        {"train_vectors": True, "train_state": True},
    ):
        with pytest.raises(InvalidRequestError):
            LoraSettings(**settings)


def test_without_a_device_of_webgpu_a_prompt_is_read_on_the_processor(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnn_engine.gpu.device._list_adapters", list)
    with tuner(data, init_prompt="Talk like a pirate.", device="auto") as running:
        assert running.start["wkv"].any()


def test_a_state_of_another_model_or_with_a_lora_is_refused(data: Path, llm: LLM) -> None:
    shape, arrays = llm.state_files.shape, llm.state_files.shape.initial_state()
    stranger = State(arrays, StateFiles(shape, "b" * 32))
    with pytest.raises(StateError, match="init: the state belongs to model b"):
        tuner(data, init=stranger)
    with tuner(data, init=stranger, any_model=True) as running:
        assert running.start.digest == stranger.digest
    small = tiny_shape(layers=1, width=32, head_size=16)
    with pytest.raises(StateError, match="init: att_shift has shape"):
        tuner(data, init=State(small.initial_state(), StateFiles(small, "b" * 32)), any_model=True)
    rows = np.ones((1, shape.width), np.float32)
    lora = freeze_lora({"blocks.0.att.key.weight": (rows, rows.T)}, "test")
    with pytest.raises(StateError, match="init: a state with a LoRA would be tuned without it"):
        tuner(data, init=State.of(freeze_state(arrays, shape, "test", lora=lora), llm.state_files))


def test_a_checkpoint_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    with tuner(data, checkpoint=path) as running:
        list(islice(running.events(), 3))
    before = path.read_bytes()
    with pytest.raises(
        InvalidRequestError, match=r"checkpoint: .* expected a file that does not exist, or resume=True"
    ):
        tuner(data, checkpoint=path)
    assert path.read_bytes() == before


def test_a_run_from_a_prompt_goes_on_where_its_state_has_other_numbers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, prompt = tmp_path / "run.checkpoint", "Talk like a pirate."
    with tuner(data, init_prompt=prompt, checkpoint=path) as running:
        list(islice(running.events(), 3))
        start = running.start
    near = freeze_state(1.0001 * start, start.shape, "test", num_tokens=9, last_tokens=start.frozen.last_tokens)
    monkeypatch.setattr("rnn_engine.llm.tuner._read_prompt", lambda *_: near)
    with tuner(data, init_prompt=prompt, checkpoint=path, resume=True) as running:
        running.run()
    with pytest.raises(StateError, match="belongs to a run with initial state and prompt"):
        tuner(data, init_prompt="Talk.", checkpoint=path, resume=True)
