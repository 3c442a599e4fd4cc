"""The numpy pass of a version as graphs of onnxruntime, which run on several threads.

The pass runs once on symbols, which record what it computes. Recurrences stay in numpy; what lies between two of them
is a session. The numbers of a token have the same bits whatever tokens are beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from rnn_engine.errors import StepError
from rnn_engine.forward.onnx_graph import Graph
from rnn_engine.reference import Array, PackedRuns, Recurrence, RunLayers, Weights
from rnn_engine.types import LoraPairs, LoraRoom, ModelShape

_TOKENS: Final = 1_000_003  # the number of tokens in the shape of a symbol; no model has this prime as a size
_RUNS: Final = 1_000_033  # the number of token runs
_RANKS: Final = 1_000_037  # the sum of the ranks of a step's LoRAs
_NAMES: Final = {_TOKENS: "T", _RUNS: "B", _RANKS: "R"}
_HALVES: Final = ("lora down", "lora up")
_MANY_TOKENS: Final = 4  # from which on a recurrence runs some heads at a time
_CACHED: Final = 1 << 19  # bytes of states that a core's cache holds beside what is computed of them
_DIVIDED_TOKENS: Final = 32  # from which on a step runs as two pieces

_OPERATORS: Final[Mapping[np.ufunc, str]] = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.negative: "Neg",
    np.tanh: "Tanh",
    np.exp: "Exp",
    np.sqrt: "Sqrt",
    np.maximum: "Max",
    np.minimum: "Min",
    np.matmul: "MatMul",
}
_FOLDED: Final = {("LayerNormalization", 1): np.multiply, ("LayerNormalization", 2): np.add, ("Gemm", 2): np.add}
"""Operators that with one input more, a vector, compute a function of numpy of their result and that vector, too."""


class Matrices(Protocol):
    """The weights of a model, which a pass multiplies with."""

    shape: ModelShape
    num_threads: int
    lora_room: LoraRoom

    def fetch(self, name: str) -> Array:
        """Return a tensor in f32 for a graph. Raises KeyError if there is none."""
        ...

    def size_of(self, name: str) -> Sequence[int]:
        """Return the shape [out, in] of a matrix."""
        ...

    def add(self, graph: Graph, name: str, x: str, product: str) -> int:
        """Add the `product` of the value `x` with a matrix to `graph`; return the multiple of rows that it needs."""
        ...


@dataclass(frozen=True, slots=True)
class _Op:
    """An operator of ONNX, or "Product" with the matrix that the attribute `name` names."""

    kind: str
    inputs: tuple[Symbol | Array, ...]
    outputs: tuple[str, ...]  # names: symbols would make a cycle, which holds weights until the garbage collector runs
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """A recurrence of a layer, whose inputs are of the class `kind`."""

    run: Recurrence
    kind: Callable[..., Any]
    vectors: tuple[str | Array, ...]  # names of symbols, or constants
    states: tuple[str, ...]
    outputs: tuple[str, ...]  # for each token, then the states


class _Record:
    """What a pass computes, in its order, from inputs that each step brings."""

    def __init__(self) -> None:
        self.ops: list[_Op | _Recurrence] = []
        self.inputs: dict[tuple[str, str | int], Symbol] = {}
        self._numbers = itertools.count()

    def input(self, kind: str, which: str | int, sizes: Sequence[int], dtype: str = "float32") -> Symbol:
        if (kind, which) not in self.inputs:
            self.inputs[kind, which] = Symbol(self, f"{kind} {which}", sizes, dtype)
        return self.inputs[kind, which]

    def result(self, sizes: Sequence[int]) -> Symbol:
        return Symbol(self, f"value {next(self._numbers)}", sizes)

    def add(self, kind: str, *inputs: Any, sizes: Sequence[int], **attributes: Any) -> Symbol:  # noqa: ANN401
        """Add an operator whose result has these `sizes`, and return the result."""
        result = self.result(sizes)
        result.op = _Op(kind, inputs, (result.name,), attributes)
        self.ops.append(result.op)
        return result


class Symbol(NDArrayOperatorsMixin):
    """An array of f32 that steps will compute. Functions of numpy add to its record what they would do with it."""

    def __init__(self, record: _Record, name: str, sizes: Sequence[int], dtype: str = "float32") -> None:
        self.record = record
        self.name = name
        self.shape = tuple(sizes)
        self.ndim = len(self.shape)
        self.dtype = np.dtype(dtype)
        self.op: _Op | None = None  # whose result it is

    def __len__(self) -> int:
        return self.shape[0]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_out: Any) -> Any:  # noqa: ANN401
        if method != "__call__":
            return NotImplemented
        if ufunc is np.square:
            return self * self
        operands = [each if isinstance(each, Symbol) else np.asarray(each, np.float32) for each in inputs]
        for symbol, other in itertools.permutations(operands, 2):
            op = symbol.op if isinstance(symbol, Symbol) and not isinstance(other, Symbol) else None
            if op and _FOLDED.get((op.kind, len(op.inputs))) is ufunc and other.shape == symbol.shape[-1:]:
                return self.record.add(op.kind, *op.inputs, other, sizes=symbol.shape, **op.attributes)
        if ufunc is np.matmul:
            sizes = (*operands[0].shape[:-1], operands[1].shape[-1])
        else:
            sizes = np.broadcast_shapes(*(each.shape for each in operands))
        return self.record.add(_OPERATORS[ufunc], *operands, sizes=sizes)

    def __array_function__(self, function: object, _types: object, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        if function is np.swapaxes:
            order = list(range(self.ndim))
            order[args[1]], order[args[2]] = args[2], args[1]
            return self.record.add("Transpose", self, sizes=[self.shape[axis] for axis in order], perm=order)
        if function is np.repeat:
            axis, places = kwargs["axis"], np.repeat(np.arange(self.shape[kwargs["axis"]]), args[1])
            sizes = (*self.shape[:axis], len(places), *self.shape[axis + 1 :])
            return self.record.add("Gather", self, places, sizes=sizes, axis=axis)
        return self.sum(**kwargs) if function is np.sum else NotImplemented

    def __iter__(self) -> Iterator[Symbol]:
        sizes = self.shape[1:]
        return (self.record.add("Gather", self, np.array(each), sizes=sizes, axis=0) for each in range(len(self)))

    def __getitem__(self, key: tuple[slice | int | None, ...]) -> Symbol:
        """Insert an axis of one for None; remove the one for 0."""
        axis = next(place for place, each in enumerate(key) if not isinstance(each, slice))
        sizes = list(self.shape)
        if key[axis] is None:
            sizes.insert(axis, 1)
            return self.record.add("Unsqueeze", self, np.array([axis]), sizes=sizes)
        return self.record.add("Squeeze", self, np.array([axis]), sizes=sizes[:axis] + sizes[axis + 1 :])

    def reshape(self, *shape: Any) -> Symbol:  # noqa: ANN401
        sizes = list(shape[0] if isinstance(shape[0], tuple) else shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = math.prod(self.shape) // -math.prod(sizes)
        target = np.array([size if size % _TOKENS else -1 for size in sizes])
        return self.record.add("Reshape", self, target, sizes=sizes)

    def copy(self) -> Symbol:
        return self

    def sum(self, axis: int = -1, *, keepdims: bool = False) -> Symbol:
        assert axis == -1
        sizes = (*self.shape[:-1], 1) if keepdims else self.shape[:-1]
        return self.record.add("ReduceSum", self, np.array([-1]), sizes=sizes, keepdims=int(keepdims))

    def mean(self, axis: int = -1, *, keepdims: bool = False) -> Symbol:
        mean: Symbol = self.sum(axis, keepdims=keepdims) / np.float32(self.shape[-1])
        return mean

    # What `rnn_engine.reference.replaceable` functions do with a symbol.

    def standardize(self, epsilon: float) -> Symbol:
        axis = self.ndim - 1
        return self.record.add("LayerNormalization", self, sizes=self.shape, axis=axis, epsilon=float(epsilon))

    def mix(self, delta: Symbol, mixes: Sequence[Array]) -> Sequence[Symbol]:
        mixed: Symbol = self + delta * np.stack(mixes)[:, np.newaxis]  # [M, T, D]
        joined = mixed.reshape(len(mixes) * self.shape[0], self.shape[1])
        outputs = tuple(self.record.result(self.shape) for _ in mixes)
        self.record.ops.append(_Op("Split", (joined,), tuple(each.name for each in outputs), {"axis": 0}))
        return outputs

    def sigmoid(self) -> Symbol:
        return self.record.add("Sigmoid", self, sizes=self.shape)


class _SymbolWeights(Weights):
    """A model's tensors while its pass is recorded."""

    def __init__(self, record: _Record, matrices: Matrices) -> None:
        super().__init__(matrices.shape, matrices.fetch)
        self._record = record
        self._matrices = matrices

    def matmul(self, x: Any, name: str) -> Any:  # noqa: ANN401
        outer, inner = self._matrices.size_of(name)
        product = self._record.add("Product", x, sizes=(len(x), outer), name=name)
        if name not in self._matrices.lora_room.matrices:
            return product
        sizes = (inner, _RANKS), (_RANKS, outer)
        down, up = (self._record.input(half, name, size) for half, size in zip(_HALVES, sizes, strict=True))
        return product + (x @ down * self._record.input("lora", "scales", (_TOKENS, _RANKS))) @ up

    def project(self, x: Any, name: str) -> Any:  # noqa: ANN401
        matrix = self(name)
        pairs = zip(x, matrix, strict=True) if matrix.ndim == 3 else [(x, matrix)]
        found = [self._record.add("Gemm", *each, sizes=(len(each[0]), matrix.shape[-1])) for each in pairs]
        return found if matrix.ndim == 3 else found[0]

    def rows(self, name: str, _ids: Any) -> Any:  # noqa: ANN401
        return self._record.input("rows", name, (_TOKENS, self._matrices.size_of(name)[1]))


@dataclass(frozen=True, slots=True)
class _SymbolRuns(PackedRuns):
    """Token runs while a pass is recorded."""

    record: _Record = field(kw_only=True)

    def shift(self, x: Any, before: Any) -> Any:  # noqa: ANN401
        joined = self.record.add("Concat", before, x, sizes=x.shape, axis=0)
        return self._gather(joined, "previous", _TOKENS)

    def last(self, x: Any) -> Any:  # noqa: ANN401
        return self._gather(x, "last", _RUNS)

    def _gather(self, x: Symbol, which: str, count: int) -> Symbol:
        places = self.record.input("places", which, (count,), "int64")
        return self.record.add("Gather", x, places, sizes=(count, *x.shape[1:]), axis=0)

    def recur(self, recurrence: Recurrence, inputs: Any, *states: Any) -> tuple[Any, ...]:  # noqa: ANN401
        vectors = tuple(getattr(inputs, each.name) for each in fields(inputs))
        outputs = tuple(self.record.result(each.shape) for each in (vectors[0], *states))
        names = tuple(each.name if isinstance(each, Symbol) else each for each in vectors)
        after = tuple(each.name for each in outputs)
        op = _Recurrence(recurrence, type(inputs), names, tuple(each.name for each in states), after)
        self.record.ops.append(op)
        return outputs


class _SymbolStates:
    """A field of the states, of which each layer's part is an input."""

    def __init__(self, record: _Record, name: str, sizes: Sequence[int]) -> None:
        self._record, self._name, self._sizes = record, name, sizes

    def __getitem__(self, key: tuple[slice, int]) -> Symbol:
        return self._record.input(self._name, key[1], (_RUNS, *self._sizes))


class _SymbolCarried:
    """The outputs of the part of the model before. Each array that the pass reads is an input."""

    def __init__(self, record: _Record, width: int) -> None:
        self._record, self._width = record, width

    def __getitem__(self, which: int) -> Symbol:
        return self._record.input("carried", which, (_TOKENS, self._width))


class _Loras:
    """The LoRAs of a step side by side: A [in, R] and B [R, out] of each matrix, and scales [T, R] of 0 or 1."""

    def __init__(self, loras: Mapping[str, LoraPairs]) -> None:
        self.digests = tuple(loras)
        self._loras = tuple(loras.values())
        ranks = [max(len(down) for down, _ in lora.pairs.values()) for lora in self._loras]
        ends = list(itertools.accumulate(ranks))
        self._columns = [slice(end - rank, end) for rank, end in zip(ranks, ends, strict=True)]
        self._rank = sum(ranks)
        self._halves: dict[str, tuple[Array, Array]] = {}

    def halves(self, name: str, outer: int, inner: int) -> tuple[Array, Array]:
        """Return A and B of the matrix `name` [out, in]."""
        if name not in self._halves:
            down, up = np.zeros((inner, self._rank), np.float32), np.zeros((self._rank, outer), np.float32)
            for lora, columns in zip(self._loras, self._columns, strict=True):
                if name in lora.pairs:
                    a, b = lora.pairs[name]
                    own = slice(columns.start, columns.start + len(a))
                    down[:, own], up[own] = a.T, b.T
            self._halves[name] = down, up
        return self._halves[name]

    def scales(self, num_tokens: int, used: Sequence[tuple[slice, LoraPairs]]) -> Array:
        """Return the scales of a step's tokens, some of which use LoRAs."""
        scales = np.zeros((num_tokens, self._rank), np.float32)
        for tokens, lora in used:
            scales[tokens, self._columns[self.digests.index(lora.digest)]] = 1
        return scales


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Tokens of a step, side by side, and what has been computed of them."""

    tokens: slice
    which: slice  # the runs of the step of which it has tokens
    runs: PackedRuns  # these tokens of theirs
    before: _Piece | None = None  # in which the first of its runs begins
    values: dict[str, Array] = field(default_factory=dict)  # by the names of symbols
    progress: SimpleQueue[bool] = field(default_factory=SimpleQueue)  # for each part that was run, if it succeeded

    @property
    def num_tokens(self) -> int:
        return int(self.runs.lengths.sum())

    def divide(self, place: int) -> tuple[_Piece, _Piece]:
        """Return the tokens before and from `place` on as pieces of their own."""
        starts, ends = self.runs.starts, self.runs.starts + self.runs.lengths
        first, last = int(np.searchsorted(ends, place, "right")), int(np.searchsorted(starts, place))
        counts = np.clip(place - starts, 0, self.runs.lengths)
        in_place = self.runs.in_place
        left, right = counts[:last].tolist(), (self.runs.lengths - counts)[first:].tolist()
        begins = _Piece(slice(0, place), slice(0, last), PackedRuns.of(left, in_place=in_place))
        runs = PackedRuns.of(right, in_place=in_place)
        before = begins if first < last else None
        return begins, _Piece(slice(place, self.tokens.stop), slice(first, self.which.stop), runs, before)


Run: TypeAlias = Callable[[_Piece], None]
"""A part of a pass, a session or a recurrence, which adds its results to a piece's values."""


class _Part(NamedTuple):
    """What is known of a part of a pass before it is ready."""

    start: Callable[[], Run]
    reads: set[str]
    makes: set[str]
    read_last: set[str]  # what no later part reads


class GraphLayers:
    """A version's pass over all layers in sessions; it is called as `rnn_engine.reference.RunLayers` is."""

    def __init__(self, run_layers: RunLayers, matrices: Matrices, *, is_later_part: bool) -> None:
        """Record the pass `run_layers`, and start its sessions. They hold all weights but tables of rows.

        The model may be a part of one that is not its first (`is_later_part`).
        """
        record, shape = _Record(), matrices.shape
        outputs: list[Symbol] = []  # of the layers
        weights = _SymbolWeights(record, matrices).watched(lambda _layer, x: outputs.append(x))  # type: ignore[arg-type]
        carried: Any = _SymbolCarried(record, shape.width) if is_later_part else ()
        weights = weights.carrying(carried)
        states: Any = {each.name: _SymbolStates(record, each.name, each.shape) for each in shape.state_fields}
        none = np.zeros(0, np.intp)
        after: Any = run_layers(weights, none, _SymbolRuns(none, none, record=record), states)[1]
        self._after = {name: [each.name for each in layers] for name, layers in after.items()}
        self._outputs = [each.name for each in outputs]
        kept: Any = weights.kept
        self._kept = [each.name for each in kept]
        self._inputs = {symbol.name: key for key, symbol in record.inputs.items()}
        self._num_threads = matrices.num_threads
        self._paired = matrices.lora_room.matrices
        self._multiples = {1}  # of tokens in a step
        wanted = {*self._outputs, *self._kept, *(name for layers in self._after.values() for name in layers)}
        with ThreadPoolExecutor(self._num_threads) as pool:
            plan = self._plan(record.ops, wanted, matrices)
            started = pool.map(lambda part: part.start(), plan)
            self._parts = [(run, part.read_last) for run, part in zip(started, plan, strict=True)]
        makers = {name: number for number, part in enumerate(plan) for name in part.makes}
        self._states = [  # the states that each part reads: their names, what they are, and which part makes the next
            [
                (name, kind, layer, makers[self._after[kind][layer]])
                for name in part.reads & self._inputs.keys()
                for kind, layer in [self._inputs[name]]
                if kind in self._after and isinstance(layer, int)
            ]
            for part in plan
        ]
        record.ops.clear()  # the record and the inputs are a cycle
        self._multiple = max(self._multiples)
        self._loras = _Loras({})  # of the last step
        self._pool = ThreadPoolExecutor(2)  # it has no thread before it is used

    def _plan(self, ops: Sequence[_Op | _Recurrence], wanted: set[str], matrices: Matrices) -> list[_Part]:
        """Return the parts of a pass. `wanted` are the names of results after the last part."""
        plan: list[_Part] = []
        end = len(ops)
        for place in range(len(ops) - 1, -2, -1):
            op = ops[place] if place >= 0 else None
            if isinstance(op, _Op):
                continue
            between: list[_Op] = []
            made, read = set[str](), set[str]()
            for each in reversed(ops[place + 1 : end]):
                names = set(each.outputs)
                if isinstance(each, _Op) and names & (wanted | read):  # else it is folded into another
                    between.insert(0, each)
                    made |= names
                    read |= {value.name for value in each.inputs if isinstance(value, Symbol)}
            read -= made
            if between:
                start = partial(self._start, between, sorted(made & wanted), matrices)
                plan.append(_Part(start, read, made, read - wanted))
                wanted |= read
            if op is not None:
                read = {*op.states, *(each for each in op.vectors if isinstance(each, str))}
                plan.append(_Part(partial(partial, self._recur, op), read, set(op.outputs), read - wanted))
                wanted |= read
            end = place
        return plan[::-1]

    def _start(self, ops: Sequence[_Op], outputs: Sequence[str], matrices: Matrices) -> Run:
        graph, made = Graph(), {name for op in ops for name in op.outputs}
        inputs: dict[str, tuple[str, Sequence[int | str]]] = {}

        def name_of(value: Symbol | Array) -> str:
            if not isinstance(value, Symbol):
                return graph.constant(value)
            if value.name not in made:
                inputs[value.name] = value.dtype.name, [_NAMES.get(size, size) for size in value.shape]
            return value.name

        for op in ops:
            names = [name_of(each) for each in op.inputs]
            if op.kind == "LayerNormalization" and len(names) == 1:
                names.append(graph.constant(np.ones(op.inputs[0].shape[-1], np.float32)))
            if op.kind == "Product":
                self._multiples.add(matrices.add(graph, op.attributes["name"], names[0], op.outputs[0]))
            else:
                graph.node(op.kind, names, *op.outputs, **op.attributes)
        run = graph.start(inputs, outputs, self._num_threads).run

        def run_part(piece: _Piece) -> None:
            found = run(outputs, {name: piece.values[name] for name in inputs})
            piece.values.update(zip(outputs, found, strict=True))

        return run_part

    @staticmethod
    def _recur(op: _Recurrence, piece: _Piece) -> None:
        values = piece.values
        vectors = [values[each] if isinstance(each, str) else each for each in op.vectors]  # each [T, H, N]
        states = [values[name] for name in op.states]

        @np.errstate(over="ignore", invalid="ignore")  # the read-out says whose rows are not finite
        def recur(heads: slice) -> tuple[Array, ...]:
            own = (each[:, heads] for each in states)
            return op.run(op.kind(*(each[:, heads] for each in vectors)), *own, piece.runs)

        num_heads, num_bytes = vectors[0].shape[1], sum(each.nbytes for each in states)
        count = min(num_heads, max(1, num_bytes // _CACHED)) if len(vectors[0]) >= _MANY_TOKENS else 1
        places = [num_heads * part // count for part in range(count + 1)]
        parts = list(map(recur, map(slice, places, places[1:])))
        for name, whole, found in zip(op.outputs, (vectors[0], *states), zip(*parts, strict=True), strict=True):
            is_whole = np.may_share_memory(found[0], whole)  # a state that was written to
            values[name] = whole if is_whole else found[0] if count == 1 else np.concatenate(found, axis=1)

    def __call__(
        self, weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
    ) -> tuple[Array, dict[str, list[Array]]]:
        """Run a step; one of many tokens as two pieces, so that one's recurrences run beside the other's products."""
        runs, num_tokens = PackedRuns.of(lengths), len(ids)
        loras = {lora.digest: lora for _, lora in weights.loras}
        if self._loras.digests != tuple(loras):
            self._loras = _Loras(loras)
        whole = _Piece(slice(0, num_tokens), slice(0, len(runs.lengths)), runs)
        place = num_tokens // 2 - num_tokens // 2 % self._multiple
        is_divided = self._num_threads > 1 and num_tokens >= _DIVIDED_TOKENS and place > 0
        pieces = whole.divide(place) if is_divided else (whole,)
        for piece in pieces:
            self._set_inputs(weights, ids, states, piece)
        if is_divided:
            running = [self._pool.submit(self._run, states, piece) for piece in pieces]
            wait(running)
            for each in running:
                each.result()
        else:
            self._run(states, whole)
        for layer, name in enumerate(self._outputs):
            weights.watch(layer, _rows(pieces, name))
        for name in self._kept:
            weights.keep(_rows(pieces, name))
        after = {name: [_states_after(pieces, each) for each in layers] for name, layers in self._after.items()}
        return _rows(pieces, self._outputs[-1]), after

    def _run(self, states: Mapping[str, Array], piece: _Piece) -> None:
        """Run a piece of a step. If its first run goes on, it follows the piece before."""
        before, num_done = piece.before, 0  # parts of the piece before
        try:
            for (part, read_last), begins in zip(self._parts, self._states, strict=True):
                if before is not None:
                    for name, kind, layer, maker in begins:
                        while num_done <= maker:
                            if not before.progress.get():
                                raise StepError("the tokens before have failed")
                            num_done += 1
                        first = before.values[self._after[kind][layer]][-1:]
                        others = states[kind][piece.which, layer][1:]
                        piece.values[name] = np.concatenate([first, others]) if len(others) else first
                part(piece)
                for name in read_last:
                    del piece.values[name]
                piece.progress.put(True)
        except BaseException:
            piece.progress.put(False)
            raise

    def _set_inputs(self, weights: Weights, ids: Array, states: Mapping[str, Array], piece: _Piece) -> None:
        """Set what the parts of a pass read of a piece, except states if its first run goes on."""
        runs, num_all, surplus = piece.runs, len(ids), -piece.num_tokens % self._multiple
        ids = np.resize(ids[piece.tokens], piece.num_tokens + surplus)
        # in the vectors before the runs, which those of the tokens follow
        previous = np.arange(len(ids)) + len(runs.starts) - 1
        previous[runs.starts] = np.arange(len(runs.starts))
        places = {"previous": previous, "last": runs.starts + runs.lengths - 1}
        for name, (kind, which) in self._inputs.items():
            if kind == "rows":
                value = weights.rows(str(which), ids)
            elif kind in ("lora", "carried"):
                whole = weights.carried[int(which)] if kind == "carried" else self._loras.scales(num_all, weights.loras)
                value = np.pad(whole[piece.tokens], ((0, surplus), (0, 0)))
            elif kind in _HALVES:
                value = self._loras.halves(str(which), *self._paired[str(which)])[_HALVES.index(kind)]
            elif kind == "places":
                value = places[str(which)]
            elif piece.before is None:
                value = states[kind][piece.which, int(which)]
            else:
                continue
            piece.values[name] = value


def _rows(pieces: Sequence[_Piece], name: str) -> Array:
    """Return the rows [T, D] of a value for all tokens."""
    rows = [piece.values[name][: piece.num_tokens] for piece in pieces]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _states_after(pieces: Sequence[_Piece], name: str) -> Array:
    """Return the states [B, ...] after all runs."""
    *earlier, states = (piece.values[name] for piece in pieces)
    ended = [each[: len(each) - (pieces[-1].before is not None)] for each in earlier]  # others go on in the last piece
    return np.concatenate([*ended, states]) if any(map(len, ended)) else states
