"""The sampling parameters of a request, declared once for the Python API, HTTP and the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, get_args, get_type_hints

from rnn_engine.errors import InvalidRequestError, check_range, check_token_ids, check_whole

if TYPE_CHECKING:  # numpy takes long to import, and the command line's help needs only the declarations
    from rnn_engine.sampling.adjustments import F64
    from rnn_engine.sampling.ranking import Places, Ranking, SequenceContext

# The protocol of samplers, which choose the next token of one sequence from a ranked row.


class Sampler(Protocol):
    """The protocol of a sampler, which chooses the tokens of one sequence, each from a ranked row of logits.

    Every sequence has a sampler of its own, so it may carry state from token to token.

    `SequenceSampler` takes care of random numbers, penalties, bias, log-probabilities and reading more of a row.
    A sampler sees a ranking whose logits are adjusted already.
    """

    @property
    def num_uniforms(self) -> int:
        """The number of random numbers from [0, 1) that each draw uses."""

    @property
    def whole_row(self) -> bool:
        """True if draws need all logits; if False, they are first tried on the few that a step reads back."""

    @property
    def selection(self) -> Callable[[F64], Places] | None:
        """A function from a row of logits [n] to the indices of the tokens that may be drawn; None if there is none.

        Penalties and biases are applied to the logits before. The other tokens need not be ranked then: a ranking with
        `is_selection` has the selected ones alone.
        """

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:
        """Choose a token of `ranking` and return its index there, or None if the choice depends on unranked tokens.

        `uniforms` are numbers from [0, 1).
        After None the draw is tried again with the same numbers and more of the row. A ranking without a rest must
        settle it.
        The token must be the same for few candidates as for the whole row. Does not change the sampler.
        """

    def drawn(self, ranking: Ranking, index: int) -> None:
        """Update the sampler's state because the token at `index` of `ranking` was drawn. Called once per draw."""


# ai00's samplers as its clients write them: an object with a `type` and the settings of that type.

PENALTY_DECAY = 0.99654026


@dataclass(frozen=True, slots=True)
class Ai00Nucleus:
    """The settings of ai00's nucleus sampling, which draws from the likeliest tokens."""

    TYPE: ClassVar = "Nucleus"

    top_p: float = 0.5
    top_k: int = 128
    temperature: float = 1.0
    presence_penalty: float = 0.3
    frequency_penalty: float = 0.3
    penalty_decay: float = PENALTY_DECAY


@dataclass(frozen=True, slots=True)
class Ai00Typical:
    """The settings of ai00's typical sampling, which draws from the tokens whose surprise is nearest to the entropy."""

    TYPE: ClassVar = "Typical"

    tau: float = 0.5
    top_k: int = 128
    temperature: float = 1.0
    presence_penalty: float = 0.3
    frequency_penalty: float = 0.3
    penalty_decay: float = PENALTY_DECAY


@dataclass(frozen=True, slots=True)
class Ai00Mirostat:
    """The settings of ai00's mirostat (its version 2), which has no penalties."""

    TYPE: ClassVar = "Mirostat"

    tau: float = 3.0
    rate: float = 0.1
    presence_penalty: ClassVar[float] = 0.0
    frequency_penalty: ClassVar[float] = 0.0
    penalty_decay: ClassVar[float] = 1.0


Ai00Sampler: TypeAlias = Ai00Nucleus | Ai00Typical | Ai00Mirostat

_KINDS = (Ai00Nucleus, Ai00Typical, Ai00Mirostat)
_RANGES = {
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "temperature": (0.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "penalty_decay": (0.0, 1.0),
    "rate": (0.0, 10.0),
    "tau": (0.0, 100.0),
}
_OTHER_NAMES = {"learning_rate": "rate", "Rate": "rate"}
_UNUSED = {"type", "penalty"}  # ai00's documents have `penalty`, a half-life; `penalty_decay` replaces it


def parse_ai00(value: object) -> Ai00Sampler:
    """Parse ai00's object `sampler`, with equal values under both names. Raises InvalidRequestError."""
    if not isinstance(value, dict):
        raise InvalidRequestError("sampler", value, 'null or an object such as {"type": "Nucleus", "top_p": 0.5}')
    kind = next((kind for kind in _KINDS if value.get("type") == kind.TYPE), None)
    if kind is None:
        raise InvalidRequestError("sampler.type", value.get("type"), "Nucleus, Typical or Mirostat")
    known = {field.name: field for field in fields(kind)}
    numbers: dict[str, float] = {}
    for name, number in value.items():
        field = _OTHER_NAMES.get(name, name)
        if name in _UNUSED:
            continue
        if field not in known:
            raise InvalidRequestError(f"sampler.{name[:80]}", number, f"one of the fields {', '.join(known)}")
        wants_whole = isinstance(known[field].default, int)
        if type(number) is not int and (wants_whole or type(number) is not float):
            raise InvalidRequestError(f"sampler.{name}", number, "a whole number" if wants_whole else "a number")
        if field in numbers and numbers[field] != number:
            allowed = f"the same value as {field}, which is another name for it"
            raise InvalidRequestError(f"sampler.{name}", number, allowed)
        numbers[field] = number
    return kind(**numbers)  # type: ignore[arg-type]


def check_ai00(sampler: Ai00Sampler) -> None:
    """Raise InvalidRequestError if a setting of ai00's `sampler` object is out of range."""
    for each in fields(sampler):
        check_range(f"sampler.{each.name}", getattr(sampler, each.name), *_RANGES[each.name])


TokenBias: TypeAlias = Mapping[int, float] | Mapping[int | str, float]
"""Token id, or a text for all of its tokens -> the number to add to the logit; minus infinity forbids the token."""

Words: TypeAlias = Sequence[str | Sequence[int]]
"""Texts, or their tokens."""

Texts: TypeAlias = Sequence[str]

MAX_SEED = 2**64 - 1
_MOST_BIAS = 1000.0

Seed: TypeAlias = int | None
"""None is a random seed, which `Finished.seed` returns."""

StepNames: TypeAlias = Sequence[str] | None
"""Names of `ORDER`; None is `ORDER` itself."""

SamplerChoice: TypeAlias = Ai00Sampler | None

MixKind: TypeAlias = Literal["log", "probability"]
"""How the distributions of several states are mixed; see `mix_logits`."""

MAX_WEIGHT = 100.0


def check_weights(weights: Sequence[float], kind: MixKind) -> None:
    """Raise InvalidRequestError if a weight for mixing states is out of range, or if all are 0."""
    for number, weight in enumerate(weights):
        check_range(f"state.{number}.weight", weight, -MAX_WEIGHT if kind == "log" else 0.0, MAX_WEIGHT)
    if not any(weights):
        raise InvalidRequestError("state", list(weights), "at least one weight that is not 0")


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values of a parameter, or of each in a mapping, both ends included, and its help sentence."""

    low: float
    high: float
    help: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of a request, which decide how each token is drawn from a row of logits.

    The default is ai00's nucleus, with these steps:

    1. Add the bias to the logits, apply `repeat_penalty`, subtract the presence and frequency penalties and DRY.
    2. Apply softmax.
    3. Keep the `top_k` most likely tokens.
    4. Keep tokens while the mass before a token is <= `top_p`.
    5. Raise the probabilities to 1 / temperature, renormalise and draw. Temperature 0 is greedy.

    Every generated token multiplies the penalties by `penalty_decay`. Then it adds `frequency_penalty` to its own and,
    when first seen, `presence_penalty`.

    If `samplers` is given or a field of another step is not neutral (`uses_chain`), the steps are llama-server's, in
    its order or that of `samplers`. Each step sees the tokens that the steps before it kept, with probabilities that
    sum up to 1.
    With `mirostat` there are only the bias, the temperature and mirostat.
    `sampler` replaces all of these steps and the penalties.

    Each field here is also a field of the HTTP bodies and an option of the commands, under the same name.
    """

    temperature: Annotated[
        float,
        Allowed(0.0, 100.0, "Higher values make unlikely tokens more likely; 0 always takes the likeliest token."),
    ] = 1.0
    top_p: Annotated[
        float, Allowed(0.0, 1.0, "Keep the likeliest tokens while the mass before one is at most this; 1 keeps all.")
    ] = 0.5
    top_k: Annotated[int, Allowed(-1, 2**31 - 1, "Keep this many of the likeliest tokens; 0 or -1 keeps all.")] = 128
    presence_penalty: Annotated[
        float, Allowed(-100.0, 100.0, "Subtracted from the logit of a token that has occurred.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, Allowed(-100.0, 100.0, "Subtracted from a token's logit for each of its occurrences.")
    ] = 0.0
    penalty_decay: Annotated[float, Allowed(0.0, 1.0, "Every generated token multiplies all penalties by this.")] = (
        PENALTY_DECAY
    )
    logit_bias: Annotated[
        TokenBias,
        Allowed(-_MOST_BIAS, _MOST_BIAS, "Token id or text -> a number to add to its logit, or false to forbid it."),
    ] = field(default_factory=dict)
    seed: Annotated[
        Seed, Allowed(0, MAX_SEED, "The same seed and prompt give the same text. Random if none is given.")
    ] = None
    min_p: Annotated[
        float, Allowed(0.0, 1.0, "Keep tokens with at least this fraction of the greatest probability; 0 keeps all.")
    ] = 0.0
    typical_p: Annotated[
        float,
        Allowed(0.0, 1.0, "Keep the tokens whose surprise is nearest to the entropy, up to this mass; 1 keeps all."),
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        Allowed(-1.0, 1000.0, "Keep logits within this many standard deviations of the greatest; 0 or -1 keeps all."),
    ] = -1.0
    xtc_probability: Annotated[
        float,
        Allowed(0.0, 1.0, "The probability of removing all tokens above `xtc_threshold` except the least likely."),
    ] = 0.0
    xtc_threshold: Annotated[float, Allowed(0.0, 1.0, "See `xtc_probability`; above 0.5 no token is removed.")] = 0.1
    dynatemp_range: Annotated[
        float, Allowed(0.0, 100.0, "How far the temperature moves down or up with the entropy; 0 keeps it fixed.")
    ] = 0.0
    dynatemp_exponent: Annotated[
        float, Allowed(0.0, 100.0, "The power of the entropy that moves the temperature; see `dynatemp_range`.")
    ] = 1.0
    repeat_penalty: Annotated[
        float,
        Allowed(
            0.01, 100.0, "Divide positive logits of recent tokens by this, and multiply others; 1 changes nothing."
        ),
    ] = 1.0
    repeat_last_n: Annotated[
        int,
        Allowed(
            -1, 2**31 - 1, "How many of the latest tokens, with the prompt, are recent for `repeat_penalty`; -1 is all."
        ),
    ] = 64
    dry_multiplier: Annotated[
        float, Allowed(0.0, 100.0, "DRY's penalty for a token that continues a repetition; 0 is none.")
    ] = 0.0
    dry_base: Annotated[
        float, Allowed(1.0, 100.0, "The factor by which DRY's penalty grows with each token of the repetition.")
    ] = 1.75
    dry_allowed_length: Annotated[
        int, Allowed(0, 2**31 - 1, "The most tokens that may repeat without DRY's penalty.")
    ] = 2
    dry_penalty_last_n: Annotated[
        int,
        Allowed(-1, 2**31 - 1, "How many of the latest tokens, with the prompt, DRY searches; at most 4096, as is -1."),
    ] = 64
    dry_sequence_breakers: Annotated[Texts, Allowed(1, 40, "Texts that no repetition extends across.")] = (
        "\n",
        ":",
        '"',
        "*",
    )
    mirostat: Annotated[
        int, Allowed(0, 2, "1 or 2 uses this version of mirostat instead of the other steps; 0 is none.")
    ] = 0
    mirostat_tau: Annotated[float, Allowed(0.0, 100.0, "The surprise that mirostat aims at, in bits.")] = 5.0
    mirostat_eta: Annotated[float, Allowed(0.0, 10.0, "How quickly mirostat reaches `mirostat_tau`.")] = 0.1
    samplers: Annotated[
        StepNames, Allowed(0, 64, "llama-server's steps in another order: a list of names, or a string of letters.")
    ] = None
    bad_words: Annotated[
        Words,
        Allowed(1, 2**31 - 1, "Texts, or lists of token ids, whose tokens are never generated one after another."),
    ] = ()
    sampler: Annotated[
        SamplerChoice,
        Allowed(0, 0, 'A sampler as ai00 describes it: {"type": "Nucleus", "Typical" or "Mirostat", and its numbers}.'),
    ] = None

    @property
    def uses_chain(self) -> bool:
        """True if tokens are drawn by llama-server's chain of steps; False if by ai00's nucleus sampling."""
        return (
            self.samplers is not None
            or self.mirostat > 0
            or self.min_p > 0.0
            or self.typical_p < 1.0
            or self.top_n_sigma > 0.0
            or self.dynatemp_range > 0.0
            or self.takes_likeliest_away
        )

    @property
    def takes_likeliest_away(self) -> bool:
        return self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5

    @property
    def penalises_occurrence(self) -> bool:
        """True if there is a presence or frequency penalty. Tokens of earlier replies get it, too."""
        amounts = self if self.sampler is None else self.sampler
        return amounts.presence_penalty != 0.0 or amounts.frequency_penalty != 0.0

    def check(self, vocab_size: int) -> None:
        """Raise InvalidRequestError for a value that is not allowed. Texts must be tokens already; see `resolved`."""
        if self == _DEFAULTS:
            return  # as thousands of inputs of one request may have them
        for parameter in PARAMETERS:
            parameter.check(getattr(self, parameter.name), vocab_size)
        if self.sampler is not None and self.uses_chain:
            message = "sampler: can't be used together with samplers, mirostat, min_p and other steps"
            raise InvalidRequestError("sampler", self.sampler, "null with other steps", message)

    def resolved(self, tokenize: Callable[[str], Sequence[int]]) -> SamplingParams:
        """Return a copy in which the texts of `logit_bias` and `bad_words` are replaced by their tokens.

        Raises InvalidRequestError if a bias is out of range or `bad_words` is a single text.
        """
        _refuse_one_text("bad_words", self.bad_words)
        if not self.bad_words and not any(isinstance(token, str) for token in self.logit_bias):
            return self
        bias: dict[int | str, float] = {}
        for key, value in self.logit_bias.items():
            if value != -math.inf:
                check_range("logit_bias value", value, -_MOST_BIAS, _MOST_BIAS)
            for token in tokenize(key) if isinstance(key, str) else (key,):
                bias[token] = bias.get(token, 0.0) + value
        bias = {token: _bounded_bias(value) for token, value in bias.items()}  # texts may share tokens
        words = [tokens for word in self.bad_words for tokens in _word_tokens(word, tokenize)]
        return replace(self, logit_bias=bias, bad_words=words)

    def make_sampler(self, context: SequenceContext) -> Sampler | None:  # noqa: ARG002
        """Return None: the fields choose the sampler. A subclass may return a sampler of its own for one sequence."""
        return None


_DEFAULTS = SamplingParams()


def _refuse_one_text(name: str, texts: Sequence[object]) -> None:
    """Raise InvalidRequestError if `texts` is a string and not a list: its letters would be taken for texts."""
    if isinstance(texts, str):
        raise InvalidRequestError(name, texts, "a list of texts")


def _bounded_bias(value: float) -> float:
    return value if value == -math.inf else min(max(value, -_MOST_BIAS), _MOST_BIAS)


def _word_tokens(word: str | Sequence[int], tokenize: Callable[[str], Sequence[int]]) -> list[Sequence[int]]:
    """Return a bad word's tokens, and those after a space if they are as many and begin otherwise."""
    if not isinstance(word, str):
        return [word]
    alone, spaced = tokenize(word.lstrip()), tokenize(" " + word.lstrip())
    return [alone, spaced] if len(spaced) == len(alone) and spaced[:1] != alone[:1] else [alone]


@dataclass(frozen=True, slots=True)
class Parameter:
    """The declaration of one field of `SamplingParams`: its name, type, default and allowed values."""

    name: str
    type: Any  # float, int, or one of the aliases above
    default: Any
    allowed: Allowed

    def check(self, value: Any, vocab_size: int) -> None:  # noqa: ANN401
        """Raise InvalidRequestError if `value` is not allowed for this sampling parameter."""
        low, high = self.allowed.low, self.allowed.high
        if self.type == TokenBias:
            for token, number in value.items():
                if isinstance(token, str):
                    raise InvalidRequestError(f"{self.name} token id", token, "an id; `resolved` replaces texts by ids")
                check_range(f"{self.name} token id", token, 0, vocab_size - 1)
                if number != -math.inf:
                    check_range(f"{self.name} value", number, low, high)
        elif self.type == Words:
            for word in value:
                if isinstance(word, str) or len(word) == 0:
                    raise InvalidRequestError(self.name, word, "a list of at least one token id")
                check_token_ids(f"{self.name} token", word, vocab_size)
        elif self.type == Texts:
            _refuse_one_text(self.name, value)
            for text in value:
                check_range(f"{self.name} length", len(text), low, high)
        elif self.type == SamplerChoice:
            if value is not None:
                check_ai00(value)
        elif self.type == StepNames:
            if value is not None:
                check_range(f"{self.name} length", len(value), low, high)
        elif self.type in (int, Seed):
            if value is not None or self.type is int:
                check_whole(self.name, value, int(low), int(high))
        else:
            check_range(self.name, value, low, high)


def _list_parameters() -> tuple[Parameter, ...]:
    hints = get_type_hints(SamplingParams, include_extras=True)
    defaults = SamplingParams()
    declared = [(one.name, get_args(hints[one.name])) for one in fields(SamplingParams)]
    return tuple(Parameter(name, kind, getattr(defaults, name), allowed) for name, (kind, allowed) in declared)


PARAMETERS = _list_parameters()
"""The fields of `SamplingParams`, in their order."""
