"""`Model`, the forward pass itself: tokens and a state in, logits, a state and hidden vectors out."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

import numpy as np

from rnn_engine.demo import DEMO
from rnn_engine.errors import (
    EngineClosedError,
    InvalidRequestError,
    StateError,
    check_list,
    check_process,
    check_token_ids,
    check_whole,
)
from rnn_engine.hub import locate_model
from rnn_engine.llm.progress import Report, ignore
from rnn_engine.llm.state import State
from rnn_engine.loading.parts import place_model
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import LoraChoice
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.types import F32, ModelShape, TokenRun
from rnn_engine_states.files.exchange import StateFiles


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """The results of `Model.trace` for T tokens."""

    logits: F32  # [T, V]
    state: State  # after the last token
    hidden: dict[int, F32]  # layer -> [T, D], the residual stream after the layer


class Model:
    """A loaded RWKV model that computes logits and states, for research on the model itself.

        from rnn_engine import Model

        with Model() as model:
            logits, state = model.forward(model.tokenize("The capital of"))
            logits, state = model.forward(model.tokenize(" France"), state)

    Nothing is drawn, cached or scheduled; for text, use `LLM`. A result does not depend on how a sequence is divided
    into calls, nor on the other sequences of a call. Methods block; threads take turns. After `close` and in forked
    processes they raise EngineClosedError.
    """

    def __init__(
        self,
        model: str | Path = DEMO,
        *,
        device: str = "auto",
        weights: str | None = None,
        loras: Sequence[LoraChoice] = (),
        tokenizer: str = "auto",
        max_sequences: int = 8,
        max_tokens: int | None = None,
        v5_group_norm_epsilon: float | None = None,
        device_memory: int | None = None,
        progress: Report = ignore,
    ) -> None:
        """Load a model onto a device; see `AsyncLLM.load` for the arguments that it has, too.

        At most `max_sequences` run in one step, and `max_tokens` tokens (None: as many as suit the device).
        `v5_group_norm_epsilon` is for an RWKV-5 model that was not trained with 64e-5. Raises ModelError,
        TokenizerError, DeviceError or InvalidRequestError.
        """
        check_whole("max_sequences", max_sequences, 1, 2**31 - 1)
        if max_tokens is not None:
            check_whole("max_tokens", max_tokens, 1, 2**31 - 1)
        path = locate_model(model)
        with open_model(path, loras, v5_group_norm_epsilon=v5_group_norm_epsilon) as opened:
            size = RunnerSize(max_sequences, max_tokens=max_tokens, max_rows=max_tokens)
            settings = LoadSettings(device=device, weights=weights, device_memory=device_memory)
            _, plan = place_model(opened, settings, size)
            self.state_files = StateFiles(opened.shape, opened.fingerprint)
            self._tokenizer = load_tokenizer(tokenizer, path, opened.shape.vocab_size)
            self._runner = load_runner(opened, plan.device, size, weights=plan.weights, progress=progress)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        self._num_sequences = max_sequences

    @property
    def shape(self) -> ModelShape:
        """The sizes of the model, such as `num_layers` and `width`."""
        return self.state_files.shape

    def forward(
        self, tokens: Sequence[int], state: State | None = None, *, all_logits: bool = False
    ) -> tuple[F32, State]:
        """Run T tokens from `state`, or from the empty state; return the logits after them, and the state.

        The logits are those after the last token [V], or with `all_logits` those after each token [T, V]. Raises
        InvalidRequestError for ids that are no tokens, StateError for a state of another model or with a LoRA, and
        StepError if the device fails.
        """
        [result] = self.forward_batch([(tokens, state)], all_logits=all_logits)
        return result

    def forward_batch(
        self, sequences: Sequence[tuple[Sequence[int], State | None]], *, all_logits: bool = False
    ) -> list[tuple[F32, State]]:
        """Run many sequences, each its tokens from its state, together; return the results in their order.

        See `forward`. Sequences may differ in length, and there may be any number of them.
        """
        checked = [self._check(f"sequences.{number}", *each) for number, each in enumerate(sequences)]
        results = []
        with self._running():
            for first in range(0, len(checked), self._num_sequences):
                group = checked[first : first + self._num_sequences]
                logits = self._run([tokens for tokens, _ in group], [state for _, state in group], all_logits)
                results += [(rows, self._read(slot)) for slot, rows in enumerate(logits)]
        return results

    def trace(self, tokens: Sequence[int], state: State | None = None, *, layers: Collection[int] = ()) -> Traced:
        """Run tokens as `forward` does; also return the residual stream [T, D] after each of `layers`.

        Layers count from 0, or from the end if negative; the results have them from 0.
        """
        tokens, state = self._check("tokens", tokens, state)
        every = range(self.shape.num_layers)
        for layer in layers:
            if not -len(every) <= layer < len(every):
                raise InvalidRequestError("layers", layer, f"layers from {-len(every)} to {len(every) - 1}")
        chosen = {every[layer] for layer in layers}
        rows: list[F32] = []
        hidden: dict[int, list[F32]] = {layer: [] for layer in sorted(chosen)}
        with self._running():
            self._runner.write_state(0, state)
            for part in _parts(tokens, min(self._runner.max_tokens, self._runner.max_rows)):
                traced = self._runner.trace([TokenRun(0, part, rows=len(part))], chosen)
                rows.append(traced.logits)
                for layer, x in traced.hidden.items():
                    hidden[layer].append(x)
            after = self._read(0)
        return Traced(np.concatenate(rows), after, {layer: np.concatenate(xs) for layer, xs in hidden.items()})

    def empty_state(self) -> State:
        """Return the state before the first token."""
        return State(self.shape.initial_state(), self.state_files)

    def load_state(self, path: str | Path, *, any_model: bool = False) -> State:
        """Read a state file in any supported format. Raises StateError.

        A file that says that its state was made for another model is refused unless `any_model` is true.
        """
        return State.read(path, self.state_files, any_model=any_model)

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; a part of a character becomes U+FFFD."""
        check_token_ids("token", tokens, self.shape.vocab_size)
        return b"".join(map(self._tokenizer.decode_bytes, tokens)).decode(errors="replace")

    def close(self) -> None:
        """Free the device's memory. Idempotent."""
        if self._process == os.getpid():
            with self._lock:
                self._closed = True
                self._runner.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Model can't be copied or pickled, since it holds a device; load another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, sequences: Sequence[Sequence[int]], states: Sequence[State | None], all_logits: bool) -> list[F32]:
        """Run each sequence in the slot of its number, and return its logits: [T, V] or [V]."""
        for slot, state in enumerate(states):
            self._runner.write_state(slot, state)
        found: list[list[F32]] = [[] for _ in sequences]
        rest = dict(enumerate(sequences))
        while rest:
            batch: list[TokenRun] = []
            room, rows = self._runner.max_tokens, self._runner.max_rows
            for slot, tokens in rest.items():
                share = min(max(room // (len(rest) - len(batch)), 1), room, rows if all_logits else room)
                part = tokens[:share]
                wanted = len(part) if all_logits else int(len(part) == len(tokens))
                if not part or wanted > rows:
                    break
                batch.append(TokenRun(slot, part, rows=wanted))
                room, rows = room - len(part), rows - wanted
            logits = self._runner.trace(batch, ()).logits
            for run in batch:
                found[run.slot].append(logits[: run.rows])
                logits = logits[run.rows :]
                rest[run.slot] = rest[run.slot][len(run.tokens) :]
            rest = {slot: tokens for slot, tokens in rest.items() if len(tokens) > 0}
        return [np.concatenate(rows) if all_logits else rows[-1][0].copy() for rows in found]

    def _read(self, slot: int) -> State:
        return State(self._runner.read_state(slot), self.state_files)

    def _check(self, field: str, tokens: Sequence[int], state: State | None) -> tuple[list[int], State | None]:
        """Return a sequence with its tokens as Python's ints. Raises InvalidRequestError, which names `field`."""
        check_list(field, tokens, "a list of token ids")
        check_token_ids(f"{field} token", tokens, self.shape.vocab_size)
        if len(tokens) == 0:
            raise InvalidRequestError(field, [], "at least one token")
        if state is not None and (not isinstance(state, State) or state.model != self.state_files.model):
            raise StateError(f"{field}: {state} belongs to another model; expected a State of this one")
        if state is not None and state.lora is not None:
            raise StateError(f"{field}: a state with a LoRA is not run with it here; expected one without, or an LLM")
        return [int(token) for token in tokens], state

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Hold the lock of the runner. Raises EngineClosedError if it was closed or belongs to another process."""
        check_process(self._process, "Model")
        with self._lock:
            if self._closed:
                raise EngineClosedError("this Model was closed")
            yield


def _parts(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]
