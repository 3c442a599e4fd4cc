"""`Tuner`, which tunes a model's initial state or a LoRA with examples from a file, for scripts and notebooks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from rnn_engine.backward import Optimizer
from rnn_engine.demo import DEMO
from rnn_engine.errors import InvalidRequestError, StateError, check_finite
from rnn_engine.hub import locate_model
from rnn_engine.llm.progress import Report, ignore
from rnn_engine.llm.state import State
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.loading.parts import place_model
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoadSettings, LoraSettings
from rnn_engine.loading.trainer import DEFAULT_OPTIMIZER, TrainerSize, load_trainer
from rnn_engine.model import LoraChoice
from rnn_engine.model.lora import BASE, is_peft_folder, write_lora
from rnn_engine.operations.chat_prompt import text_before_chat
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.training.checkpoint import load_checkpoint, save_checkpoint
from rnn_engine.training.data import BadLines, DataSettings, LongTexts, TextMaker, read_data
from rnn_engine.training.tuner import Event, Judged, Progress, TunerSettings, Tuning, no_rest
from rnn_engine.types import Runner, TokenRun, run_step
from rnn_engine.types import State as Arrays
from rnn_engine_states.files.exchange import ExportForm, StateFiles
from rnn_engine_states.files.full import check_model
from rnn_engine_states.frozen import FrozenState, check_fields, freeze_lora, freeze_state

DEFAULT_SETTINGS: Final = TunerSettings()
_ONE_SLOT: Final = RunnerSize(num_slots=1)


class Tuner:
    """Tunes the initial state of a model, or a LoRA, with examples from a file. The weights do not change.

        from rnn_engine import Tuner

        with Tuner("persona.jsonl") as tuner:
            tuner.run(print)
            tuner.save("persona.safetensors")

    A run first searches for a learning rate, unless the settings have one. From time to time it judges the state by
    the held-out examples, and `best` is the best one so far. `state` and `best` can be read at any moment between two
    events. Not thread-safe.
    """

    def __init__(
        self,
        data: str | Path,
        model: str | Path = DEMO,
        settings: TunerSettings = DEFAULT_SETTINGS,
        *,
        held_out: str | Path | float | None = None,
        bad_lines: BadLines = "error",
        long_texts: LongTexts = "error",
        init: State | str | Path | None = None,
        init_prompt: str | None = None,
        train_shifts: bool = False,
        lora: LoraSettings | None = None,
        optimizer: Optimizer = DEFAULT_OPTIMIZER,
        max_tokens: int = 1024,
        max_documents: int = 16,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        resume: bool = False,
        any_model: bool = False,
        device: str = "auto",
        weights: str | None = None,
        device_memory: int | None = None,
        tokenizer: str = "auto",
        chat_template: str = "auto",
        loras: Sequence[LoraChoice] = (),
        v5_group_norm_epsilon: float | None = None,
        progress: Report = ignore,
        rest: Callable[[], None] = no_rest,
    ) -> None:
        """Read the data, and load a model onto a device; see `AsyncLLM.load` for the arguments that it has, too.

        `data` has examples in any form that docs/state-tuning.md describes. `held_out` is a file with other examples,
        or the share of `data` that is held out; None is a twentieth, but at least 8 examples, or a fifth if that is
        fewer. `bad_lines` says what becomes of lines that can't be used, `long_texts` of examples with more than
        `max_tokens` tokens: they are an error, or skip, or cut, which keeps their beginning.

        The state starts from `init`, a state or a file, or from the model's empty state; from there, the model first
        reads `init_prompt`. `any_model` takes a state that was made for another model. `train_shifts` also trains the
        token shifts. With `lora`, low-rank pairs beside the model's matrices are trained in place of the state, which
        stays empty, or beside it if `lora.train_state`. A call of the trainer has at most `max_tokens` tokens and
        `max_documents` documents.

        `checkpoint` is a file in which the run is kept, at least each `checkpoint_seconds`. It must not exist, unless
        `resume` is true: then the run goes on from it, and ends with the state with which it would have ended. On
        another device, or with weights of another format, the numbers differ a little.

        `rest` is called after each call of the trainer, so that others may use the device meanwhile. An error that it
        raises leaves the iteration over `events`, like Ctrl-C.

        Raises InvalidRequestError for data or settings that can't be used, ModelError, TokenizerError, DeviceError, and
        StateError if `init` or the checkpoint can't be used.
        """
        check_finite("checkpoint_seconds", checkpoint_seconds)
        if resume and checkpoint is None:
            raise InvalidRequestError("resume", True, "false, since there is no checkpoint")
        if not resume and checkpoint is not None and Path(checkpoint).exists():
            raise InvalidRequestError("checkpoint", str(checkpoint), "a file that does not exist, or resume=True")
        has_state = lora is None or lora.train_state
        if not has_state and (init is not None or init_prompt is not None or train_shifts):
            raise InvalidRequestError("lora", str(lora), "none, since the settings of a state are given")
        path = locate_model(model)
        with open_model(path, loras, v5_group_norm_epsilon=v5_group_norm_epsilon) as opened:
            self.state_files = StateFiles(opened.shape, opened.fingerprint)
            maker = TextMaker(
                load_tokenizer(tokenizer, path, opened.shape.vocab_size), load_chat_template(chat_template, path)
            )
            self._start = self._read_init(init, any_model=any_model)
            begins = self._start.digest, init_prompt
            if init_prompt is not None:
                loading = LoadSettings(device=device, weights=weights, device_memory=device_memory)
                _, plan = place_model(opened, loading, _ONE_SLOT)
                with closing(load_runner(opened, plan.device, _ONE_SLOT, weights=plan.weights)) as runner:
                    self._start = _read_prompt(runner, maker, self._start, init_prompt)
            self._train_shifts = train_shifts
            self.maker = replace(maker, before=self._text_before_chat(maker))
            part = Path(held_out) if isinstance(held_out, str) else held_out
            self.data = read_data(
                Path(data), self.maker, DataSettings(max_tokens, part, settings.seed, bad_lines, long_texts)
            )
            self.lora = lora
            size = TrainerSize(max_tokens, max_documents, train_shifts, lora)
            self._pairs = pairs = size.pairs(opened.tensors)
            start = {**self._start.state} if has_state else {}
            if pairs is not None:
                seed = settings.seed
                is_drawn = resume or not pairs.num_fixed  # the checkpoint of a run has its start
                start |= pairs.draw(seed) if is_drawn else pairs.decompose(opened.tensor, seed)
                start |= {name: opened.tensor(name).astype(np.float32) for name in pairs.vectors}
            self._trainer = load_trainer(
                opened,
                device,
                size,
                weights=weights,
                optimizer=optimizer,
                device_memory=device_memory,
                progress=progress,
            )
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._checkpoint_seconds = checkpoint_seconds
        self._saved_at = time.monotonic()
        self._run = self._describe_run(begins, settings, optimizer, size)
        try:
            self._tuning = Tuning(self._trainer, self.data, settings, start, rest)
            if resume and self._checkpoint is not None:
                self._tuning.resume(load_checkpoint(self._checkpoint, self._run))
        except BaseException:
            self._trainer.close()
            raise

    @property
    def state(self) -> State:
        """The present initial state, which the next update changes."""
        return self._as_state(self._tuning.state)

    @property
    def best(self) -> State:
        """The state with the least loss on the held-out examples so far, at first that of the start.

        In a run of a LoRA it has the LoRA, with which an `LLM` with room for it (`max_loras`) runs. It lacks a LoRA
        with vectors, whose file can only be merged.
        """
        return self._as_state(self._tuning.best)

    @property
    def start(self) -> State:
        """The state from which the run has started."""
        return State.of(self._start, self.state_files)

    @property
    def pairs(self) -> Arrays:
        """The best LoRA so far: A [R, in], B [out, R] and any vectors by their names; empty in a run of a state."""
        return {} if self._pairs is None else {name: self._tuning.best[name] for name in self._pairs.shapes}

    @property
    def rate(self) -> float | None:
        """The learning rate of the run; None while it is being searched for."""
        return self._tuning.rate

    @property
    def judged(self) -> Sequence[Judged]:
        """The losses on the held-out examples so far; the first is that of the start."""
        return tuple(self._tuning.judged)

    @property
    def progress(self) -> Progress:
        """All that the run has reached, such as the loss of each update."""
        return self._tuning.progress

    @property
    def is_finished(self) -> bool:
        """True after the last update, or if the held-out loss has not become better for too long."""
        return self._tuning.is_finished

    def events(self) -> Iterator[Event]:
        """Let the run go on, and yield each event after it has happened: an update, a judgement, or a rate tried.

        The iteration may be left at any event; a later one goes on from there. Raises StepError if no learning rate is
        of use or the device fails, and OSError if the checkpoint can't be written.
        """
        try:
            for event in self._tuning.run():
                yield event  # before it is saved, so that who keeps the events has all that a checkpoint is past
                if time.monotonic() - self._saved_at > self._checkpoint_seconds:
                    self._save_checkpoint()
        finally:
            self._save_checkpoint()

    def run(self, on_event: Callable[[Event], None] = ignore) -> State:
        """Run to the end, call `on_event` with each event, and return the best state. Raises as `events` does."""
        for event in self.events():
            on_event(event)
        return self.best

    def save(self, path: str | Path, *, best: bool = True) -> None:
        """Write the best state or LoRA, or the present one, to a file, atomically, in the form of its name.

        `.st` and `.safetensors` hold the matrices as ai00 has them, `.pth` as BlinkDL, and `.state`, this project's own
        file, has the token shifts, too. A LoRA is written to `.safetensors` with its alpha, or to `.pth` without, in
        RWKV-PEFT's names, or to a folder of PEFT, which has a name without an ending; one with a state to `.state`.
        Raises StateError if the form can't have the state, and OSError if the file can't be written.
        """
        form, lora = self.form_of(Path(path)), self.lora
        if lora is None or lora.train_state:
            (self.best if best else self.state).save(path, form)
            return
        metadata = {
            "format": "rnn-engine-lora",
            BASE: self.state_files.model,
            "rank": str(lora.result.rank),
            "targets": ",".join(lora.targets),
            "run": json.dumps(self._run, sort_keys=True),
        }
        write_lora(Path(path), self._tuning.best if best else self._tuning.state, lora.result.alpha, metadata)

    def form_of(self, path: Path) -> ExportForm:
        """Return the form of a file with this name.

        Raises InvalidRequestError for an unknown ending, and StateError if the form can't have the run's states.
        """
        forms, lora = _FORMS, self.lora
        if lora is not None:
            forms = {".state": "full"} if lora.train_state else _LORA_FORMS
        if lora is not None and not lora.train_state and is_peft_folder(path):
            if lora.train_vectors or self.state_files.shape.version != "v7":
                allowed = "a name that ends in .safetensors or .pth: PEFT's folders have pairs of RWKV-7 alone"
                raise InvalidRequestError("output", str(path), allowed)
            if path.exists():
                raise InvalidRequestError("output", str(path), "a folder that does not exist yet")
            return "tuned"
        form = next((form for ending, form in forms.items() if path.name.endswith(ending)), None)
        if form is None:
            folder = ", or has no ending, for a folder of PEFT" if forms is _LORA_FORMS else ""
            raise InvalidRequestError("output", str(path), f"a name that ends in {', '.join(forms)}{folder}")
        if form in ("tuned", "pth") and (self._train_shifts or self._start.has_shifts):
            raise StateError(
                f"{path.name}: a file of tuned matrices has no token shifts, and this state has some; expected a name "
                "that ends in .state"
            )
        return form

    def close(self) -> None:
        """Free what the run holds on a device. Idempotent."""
        self._trainer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _describe_run(
        self, begins: tuple[str, str | None], settings: TunerSettings, optimizer: Optimizer, size: TrainerSize
    ) -> Mapping[str, object]:
        """Return what makes a run what it is, by which a checkpoint is known."""
        return {
            "model": self.state_files.model,
            "data": self.data.digest,
            "initial state and prompt": begins,
            "trained shifts": size.train_shifts,
            **({} if size.lora is None else {"LoRA": asdict(size.lora)}),
            "optimizer": asdict(optimizer),
            "most tokens and documents of a call": [size.max_tokens, size.max_documents],
            "settings": asdict(settings),
        }

    def _save_checkpoint(self) -> None:
        if self._checkpoint is not None:
            save_checkpoint(self._checkpoint, self._tuning.progress, self._run)
        self._saved_at = time.monotonic()

    def _read_init(self, init: State | str | Path | None, *, any_model: bool) -> FrozenState:
        if init is None:
            return freeze_state(self.state_files.shape.initial_state(), self.state_files.shape, "init")
        state = State.read(init, self.state_files, any_model=any_model) if isinstance(init, str | Path) else init
        check_model("init", state.model, None if any_model else self.state_files.model)
        check_fields(state, self.state_files.shape, "init")
        if state.lora is not None:
            raise StateError("init: a state with a LoRA would be tuned without it; expected a state without a LoRA")
        return state.frozen

    def _as_state(self, arrays: Arrays) -> State:
        start, files = self._start, self.state_files
        state = {name: arrays.get(name, values) for name, values in start.state.items()}
        tokens, last = start.num_tokens or 0, start.last_tokens
        pairs = self._pairs
        lora = None if pairs is None or pairs.vectors else freeze_lora(pairs.scaled(arrays), "LoRA")
        frozen = freeze_state(state, files.shape, "state", num_tokens=tokens, last_tokens=last, lora=lora)
        return State.of(frozen, files)

    def _text_before_chat(self, maker: TextMaker) -> str:
        """Return what the server will write before a chat that starts from the tuned state."""
        if self._train_shifts and self._start.num_tokens == 0:
            return maker.template.follow("")  # as after a text of unknown length, since shifts come from a text
        return text_before_chat(maker, self._start, maker.template)


_FORMS: Final[Mapping[str, ExportForm]] = {".safetensors": "tuned", ".st": "tuned", ".pth": "pth", ".state": "full"}


_LORA_FORMS: Final[Mapping[str, ExportForm]] = {".safetensors": "tuned", ".pth": "pth"}


def _read_prompt(runner: Runner, maker: TextMaker, start: FrozenState, text: str) -> FrozenState:
    """Return the state after a model has read `text` from `start`, and what separates the text from a chat."""
    tokens = maker.tokenize(text + maker.template.follow(text))
    if not tokens:
        raise InvalidRequestError("init_prompt", text, "a text")
    runner.write_state(0, start.state)
    for place in range(0, len(tokens), runner.max_tokens):
        run_step(runner, [TokenRun(0, tokens[place : place + runner.max_tokens])])
    state = runner.read_state(0)
    count = len(tokens) + (start.num_tokens or 0)
    return freeze_state(state, runner.shape, "init_prompt", num_tokens=count, last_tokens=tokens)
