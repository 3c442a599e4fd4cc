"""The interface of the package `rwkv` (PyPI, 0.8.32) on this engine: a script changes one import.

    from rnn_engine.compat.rwkv import PIPELINE, PIPELINE_ARGS, RWKV

    model = RWKV(model="path/to/rwkv7-g1-0.1b", strategy="cpu fp32")
    pipeline = PIPELINE(model, "rwkv_vocab_v20230424")
    pipeline.generate("User: Hello\\n\\nAssistant:", token_count=100, callback=print)

Signatures, defaults and results are the package's. If a program has imported torch, logits and states are torch's
tensors on the processor; else they are numpy arrays with the methods that scripts call on these (`Array`). The
environment variables `RWKV_V7_ON`, `RWKV_JIT_ON` and others are not needed and have no effect. The tensors of a model
(`model.w`, `model.z`) are not there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, TokenizerError
from rnn_engine.llm.model import Model
from rnn_engine.llm.state import State
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.types import FieldKind, Tokenizer

_STRATEGY = re.compile(r"(cuda(?::\d+)?|cpu|mps|dml) (fp16|fp32|bf16)(i8|i4|i3)?( \*\d+\+?)?")
_FORMATS = {"fp16": "f16", "fp32": "f32", "bf16": "bf16", "i8": "int8", "i4": "int4"}
_BAD_TEXT = "\ufffd"


class Array(np.ndarray[Any, np.dtype[np.float32]]):
    """A numpy array that has the methods of torch tensors that scripts for `rwkv` call. They convert nothing."""

    def detach(self) -> Self:
        return self

    cpu = float = contiguous = detach

    def clone(self) -> Self:
        return self.copy()

    def numpy(self) -> NDArray[np.float32]:
        return self.view(np.ndarray)


States: TypeAlias = MutableSequence[Array]
"""A state as the package has it: layer after layer, 3 arrays each, 5 in RWKV-4, and 2 in a Qwen2's body.

They are the token shift of the time mix [D], wkv, and the token shift of the channel mix [D]. wkv is [H, value, key] in
RWKV-7 and [H, key, value] in RWKV-5 and 6. RWKV-4 has aa, bb and pp [D] in its place.
"""


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """The sizes of a model as `RWKV.args`."""

    MODEL_NAME: str
    strategy_string: str
    n_layer: int
    n_embd: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class LayerStrategy:
    """The device and the number type of a layer's part of a state: `RWKV.strategy[layer]`."""

    device: str = "cpu"

    @property
    def atype(self) -> object:
        """f32, as torch calls it in a program that has imported torch."""
        return getattr(sys.modules.get("torch"), "float32", np.float32)


class RWKV:
    """A loaded model, as `rwkv.model.RWKV`."""

    def __init__(
        self, model: str, strategy: str, verbose: bool = True, convert_and_save_and_exit: str | None = None
    ) -> None:
        """Load the model file `model`, with or without `.pth` at its end, or a model that `LLM` takes by name.

        `strategy` is one of the package's: the device and the number format of its first part count. `cpu` is numpy in
        f32; `cuda`, `mps` and `dml` are the fastest device that WebGPU reaches. i8 and i4 are this engine's int8 and
        int4. Nothing is printed, whatever `verbose` is. Raises InvalidRequestError for another strategy and for
        `convert_and_save_and_exit`, and the errors of `Model`.
        """
        del verbose
        if convert_and_save_and_exit is not None:
            message = "`rnn-engine convert` writes model files"
            raise InvalidRequestError("convert_and_save_and_exit", convert_and_save_and_exit, "None", message)
        device, weights = parse_strategy(strategy)
        name = model.strip()
        file = next((path for path in (Path(name), Path(f"{name}.pth")) if path.is_file()), None)
        self.model = Model(file or name, device=device, weights=weights, tokenizer="none", max_sequences=1)
        shape = self.model.shape
        self.args = ModelArguments(name, strategy, shape.num_layers, shape.width, shape.vocab_size)
        self.strategy = [LayerStrategy()] * (shape.num_layers + 1)
        self.version = float(shape.version[1])
        self._turns = shape.version[1] in "56"
        self._fields = [(each.name, each.kind is FieldKind.MATRIX and self._turns) for each in shape.state_fields]

    def generate_zero_state(self) -> States:
        return self._list(self.model.empty_state())

    def forward(
        self, tokens: int | Sequence[int], state: States | None, full_output: bool = False
    ) -> tuple[Array, States]:
        """Run token ids from `state`, which is changed in place; None is the empty state. Return the logits and it.

        The logits are those after the last token [V], or with `full_output` those of all tokens [T, V] if there are
        several.
        """
        ids = [tokens] if isinstance(tokens, int) else [int(token) for token in tokens]
        before = None if state is None else self._state(state)
        logits, after = self.model.forward(ids, before, all_logits=full_output and len(ids) > 1)
        states = self._list(after)
        if state is None:
            return _array(logits), states
        state[:] = states
        return _array(logits), state

    def _list(self, state: State) -> States:
        return [
            _array(state[name][layer].swapaxes(-1, -2) if turned else state[name][layer])
            for layer in range(self.args.n_layer)
            for name, turned in self._fields
        ]

    def _state(self, states: States) -> State:
        count = len(self._fields)
        if len(states) != count * self.args.n_layer:
            allowed = f"{count} arrays for each of the {self.args.n_layer} layers"
            raise InvalidRequestError("state", f"{len(states)} arrays", allowed)
        arrays = {
            name: np.stack([np.asarray(each).swapaxes(-1, -2) if turned else each for each in states[place::count]])
            for place, (name, turned) in enumerate(self._fields)
        }
        return State(arrays, self.model.state_files)


def parse_strategy(strategy: str) -> tuple[str, str | None]:
    """Return device and format of a strategy such as "cuda fp16i8 *10 -> cpu fp32". Raises InvalidRequestError."""
    parts = [_STRATEGY.fullmatch(part.strip()) for part in strategy.split("->")]
    first = parts[0]
    if first is None or None in parts or first[3] == "i3":
        raise InvalidRequestError("strategy", strategy, "a strategy such as 'cuda fp16', 'cuda fp16i8' or 'cpu fp32'")
    if first[1] == "cpu":
        return "cpu", None
    return "auto", _FORMATS[first[3] or first[2]]


@dataclass
class PIPELINE_ARGS:  # noqa: N801 - the package's name
    """The settings of `PIPELINE.generate`, as `rwkv.utils.PIPELINE_ARGS`."""

    temperature: float = 1.0
    top_p: float = 0.85
    top_k: int = 0
    alpha_frequency: float = 0.2
    alpha_presence: float = 0.2
    alpha_decay: float = 0.996
    token_ban: Sequence[int] = field(default_factory=list)
    token_stop: Sequence[int] = field(default_factory=list)
    chunk_len: int = 256  # tokens of the prompt in one call of the model; the result does not depend on it


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer with the methods of the package's `TRIE_TOKENIZER`: `PIPELINE.tokenizer`."""

    _inner: Tokenizer
    _is_world: bool

    def encode(self, src: str) -> list[int]:
        return self._inner.encode(src)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. With World's vocabulary, a text that is not whole is one U+FFFD."""
        pieces = [self._inner.decode_bytes(int(token)) for token in tokens]
        if not self._is_world:
            return b"".join(pieces).decode(errors="replace")
        try:
            return b"".join(pieces).decode() if all(pieces) else _BAD_TEXT
        except UnicodeDecodeError:
            return _BAD_TEXT


class PIPELINE:
    """Text for a model and from it, as `rwkv.utils.PIPELINE`."""

    def __init__(self, model: RWKV, WORD_NAME: str) -> None:  # noqa: N803 - the package's name
        """Use the tokenizer `WORD_NAME`: rwkv_vocab_v20230424 for World models, or the path of a tokenizer.json."""
        if WORD_NAME == "cl100k_base":
            raise TokenizerError("cl100k_base is not supported; expected rwkv_vocab_v20230424 or a tokenizer.json")
        self.model = model
        is_world = WORD_NAME == "rwkv_vocab_v20230424"
        chosen = "world" if is_world else WORD_NAME
        self.tokenizer = TextTokenizer(load_tokenizer(chosen, Path(WORD_NAME), model.args.vocab_size), is_world)

    def refine_context(self, context: str) -> str:
        """Return a text without white space around its lines and without empty lines, after a line break."""
        lines = [line.strip().strip("\u3000").strip("\r") for line in context.strip().split("\n")]
        return "\n" + "\n".join(line for line in lines if line).strip()

    def encode(self, x: str) -> list[int]:
        return self.tokenizer.encode(x)

    def decode(self, x: Sequence[int]) -> str:
        return self.tokenizer.decode(x)

    def sample_logits(
        self, logits: NDArray[np.float32], temperature: float = 1.0, top_p: float = 0.85, top_k: int = 0
    ) -> int:
        """Draw a token with numpy's global random numbers, as the package does on a CPU.

        Tokens less likely than the one at which the mass reaches `top_p` are left out. Temperature 0 is greedy.
        """
        if temperature == 0:
            temperature, top_p = 1.0, 0.0
        values = np.asarray(logits, np.float32)
        raised = np.exp(values - values.max())
        probs: NDArray[np.float32] = raised / np.sum(raised)
        ids = np.argsort(probs)
        descending = probs[ids][::-1]
        cutoff = float(descending[np.argmax(np.cumsum(descending) >= top_p)])
        probs[probs < cutoff] = 0
        if 0 < int(top_k) < len(probs):
            probs[ids[: -int(top_k)]] = 0
        if temperature != 1.0:
            probs = probs ** (1.0 / temperature)
        return int(np.random.choice(a=len(probs), p=probs / np.sum(probs)))

    def generate(
        self,
        ctx: str,
        token_count: int = 100,
        args: PIPELINE_ARGS | None = None,
        callback: Callable[[str], object] | None = None,
        state: States | None = None,
    ) -> str:
        """Continue the text `ctx` by at most `token_count` tokens; `callback` is called with each part of the text.

        Presence and frequency penalties do not count digits, spaces and tabs.
        """
        settings = args or PIPELINE_ARGS()
        generated: list[int] = []
        text, told = "", 0
        occurrence: dict[int, float] = {}
        tokens = self.encode(ctx)
        for number in range(token_count):
            while tokens:
                logits, state = self.model.forward(tokens[: settings.chunk_len], state)
                tokens = tokens[settings.chunk_len :]
            for token in settings.token_ban:
                logits[token] = -np.inf
            for token, count in occurrence.items():
                logits[token] -= settings.alpha_presence + count * settings.alpha_frequency
            token = self.sample_logits(logits, settings.temperature, settings.top_p, settings.top_k)
            if token in settings.token_stop:
                break
            generated.append(token)
            tokens = [token]
            occurrence = {each: count * settings.alpha_decay for each, count in occurrence.items()}
            counts = self.decode([token]) not in " \t0123456789"
            occurrence[token] = occurrence.get(token, 0.0) + counts
            part = self.decode(generated[told:])
            if _BAD_TEXT not in part:
                if callback is not None:
                    callback(part)
                text += part
                told = number + 1
        return text


def _array(values: NDArray[np.float32]) -> Array:
    """Return a copy of `values` that may be changed: a tensor if torch was imported, else an array with its methods."""
    copied = np.ascontiguousarray(values).copy()
    torch = sys.modules.get("torch")
    tensor: Array = copied.view(Array) if torch is None else torch.from_numpy(copied)
    return tensor
