"""The fields of `SamplingParams`: their ranges, and their presence in HTTP and on the command line."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rnn_engine.cli.generate import generate_command as command
from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.params import PARAMETERS, Ai00Mirostat, Ai00Nucleus, Ai00Typical, Parameter, SamplingParams
from rnn_engine_server.apis.openai.schemas import ChatRequest, CompletionRequest

VOCAB_SIZE = 10

ALLOWED = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 0, 2**31 - 1),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "penalty_decay": (0.0, 1.0),
    "logit_bias": ({0: -1000.0}, {9: 1000.0}, {3: -math.inf}, {}),
    "seed": (0, 2**64 - 1, None),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "top_n_sigma": (-1.0, 0.0, 1000.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "repeat_penalty": (0.01, 100.0),
    "repeat_last_n": (-1, 0, 2**31 - 1),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (0, 2**31 - 1),
    "dry_penalty_last_n": (-1, 2**31 - 1),
    "dry_sequence_breakers": ((), ("\n", "x" * 40)),
    "mirostat": (0, 1, 2),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 10.0),
    "samplers": (None, (), ("top_k", "temperature")),
    "bad_words": ((), ((0, 9), (3,))),
    "sampler": (
        None,
        Ai00Nucleus(top_p=1.0),
        Ai00Typical(tau=0.0),
        Ai00Typical(tau=5.0),
        Ai00Mirostat(tau=100.0, rate=10.0),
    ),
}
REFUSED: list[tuple[str, Any, str]] = [
    ("temperature", 100.5, "temperature"),
    ("temperature", math.nan, "temperature"),
    ("top_p", -0.1, "top_p"),
    ("top_k", -2, "top_k"),
    ("presence_penalty", 101, "presence_penalty"),
    ("frequency_penalty", -math.inf, "frequency_penalty"),
    ("penalty_decay", 1.1, "penalty_decay"),
    ("logit_bias", {1: 0.0, 2: 1001.0}, "logit_bias value"),
    ("logit_bias", {1: 0.0, 10: 1.0}, "logit_bias token id"),
    ("logit_bias", {1: math.inf}, "logit_bias value"),
    ("seed", 2**64, "seed"),
    ("repeat_penalty", 0.0, "repeat_penalty"),
    ("mirostat", 3, "mirostat"),
    ("dry_sequence_breakers", ("x" * 41,), "dry_sequence_breakers length"),
    ("sampler", Ai00Nucleus(top_p=1.5), "sampler.top_p"),
    ("sampler", Ai00Typical(tau=101.0), "sampler.tau"),
    ("sampler", Ai00Mirostat(rate=-1.0), "sampler.rate"),
]


def test_every_field_is_declared_with_its_range() -> None:
    assert [parameter.name for parameter in PARAMETERS] == list(ALLOWED)
    for name, values in ALLOWED.items():
        for value in values:
            SamplingParams(**{name: value}).check(VOCAB_SIZE)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value", "field"), REFUSED)
def test_values_outside_the_range_are_refused_by_name(name: str, value: Any, field: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidRequestError, match="is not allowed; expected a number from") as raised:
        SamplingParams(**{name: value}).check(VOCAB_SIZE)
    assert raised.value.field == field


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda parameter: parameter.name)
def test_http_and_commands_have_every_field_with_its_default_and_help(parameter: Parameter) -> None:
    for body in (CompletionRequest, ChatRequest):
        field = body.model_fields[parameter.name]
        assert (field.default, field.description) == (parameter.default, parameter.allowed.help)
    [option] = [option for option in command.params if option.name == parameter.name]
    assert parameter.allowed.help in option.to_info_dict()["help"]


def test_biases_of_texts_that_share_a_token_stay_within_the_range() -> None:
    shared: dict[int | str, float] = {"aa": -600.0, "b": -600.0, 5: 1.0}
    params = SamplingParams(logit_bias=shared).resolved(lambda text: [7] * len(text))
    assert params.logit_bias == {7: -1000.0, 5: 1.0}
    great: dict[int | str, float] = {"a": -2000.0}
    with pytest.raises(InvalidRequestError, match="logit_bias value"):
        SamplingParams(logit_bias=great).resolved(lambda text: [7])


def test_a_text_in_place_of_several_is_refused_and_not_taken_by_its_letters() -> None:
    with pytest.raises(
        InvalidRequestError, match="dry_sequence_breakers: 'ab' is not allowed; expected a list of texts"
    ):
        SamplingParams(dry_sequence_breakers="ab").check(VOCAB_SIZE)
    with pytest.raises(InvalidRequestError, match="bad_words: 'ab' is not allowed; expected a list of texts"):
        SamplingParams(bad_words="ab").resolved(lambda text: [7] * len(text))
