"""The request fields that control how tokens are chosen: the parameters in `SamplingParams`, and grammars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, ValidationInfo, create_model
from pydantic_core import from_json

from rnn_engine.chat_template.tools import to_json
from rnn_engine.errors import InvalidRequestError
from rnn_engine.grammar import Grammar, choice_grammar, json_grammar, written_grammar
from rnn_engine.sampling.chain import parse_order
from rnn_engine.sampling.params import (
    MAX_SEED,
    PARAMETERS,
    Parameter,
    SamplerChoice,
    SamplingParams,
    Seed,
    StepNames,
    Texts,
    TokenBias,
    Words,
    parse_ai00,
)
from rnn_engine_server.apis.common.states import MixBody
from rnn_engine_server.core.schema import (
    INTEGER,
    INTEGERS,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    STRINGS,
    Parsed,
    RefusedError,
    is_integers,
)
from rnn_engine_server.core.settings import Limits

_BIAS_FORMS = (
    'an object such as {"65530": -1.5, "text": false} or a list of pairs such as [[65530, -1.5], ["text", false]]'
)


def _parse_bias(value: object) -> dict[int | str, float]:
    """Return the biases in the field `logit_bias` by token id or text, with several biases of one token added up."""
    if isinstance(value, dict):
        pairs: Sequence[object] = [(_parse_key(key), bias) for key, bias in value.items()]
    elif isinstance(value, list):
        pairs = value
    else:
        raise RefusedError(value, _BIAS_FORMS)
    parsed: dict[int | str, float] = {}
    for pair in pairs:
        token, bias = _parse_pair(pair)
        parsed[token] = parsed.get(token, 0.0) + bias
    return parsed


def _parse_key(key: str) -> int | str:
    if not (key.isascii() and key.isdigit()):
        return key
    if len(key) > 20:
        raise RefusedError(key, "token ids of at most 20 digits")
    return int(key)


def _parse_pair(pair: object) -> tuple[int | str, float]:
    match pair:
        case [int() | str() as token, False]:
            bias = -math.inf
        case [int() | str() as token, int() | float() as number] if not isinstance(number, bool):
            try:
                bias = float(number)
            except OverflowError:
                raise RefusedError(number, "numbers that fit a 64-bit float") from None
        case _:
            raise RefusedError(pair, _BIAS_FORMS)
    if isinstance(token, bool) or token == "":
        raise RefusedError(token, "a token id or a text that is not empty")
    return token, bias


def _parse_seed(value: object) -> int | None:
    if value is None or (type(value) is int and value == -1):
        return None
    if type(value) is int and 0 <= value <= MAX_SEED:
        return value
    raise RefusedError(value, f"a whole number from 0 to {MAX_SEED}, or null or -1 for a random one")


def _parse_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = _from_json(value)  # some clients write the list as JSON
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise RefusedError(value, "a list of strings, none of them empty")
    return tuple(value)


def _from_json(text: str) -> object:
    try:
        return from_json(text)
    except ValueError:
        return text


def _parse_words(value: object) -> tuple[str | tuple[int, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) or is_integers(word) for word in value):
        raise RefusedError(value, "a list of strings or lists of token ids")
    if not all(value):
        raise RefusedError(value, "words that are not empty")
    return tuple(word if isinstance(word, str) else tuple(word) for word in value)


def _refusing(parse: Callable[[object], Any], of: str) -> Callable[[object], Any]:
    """Return a function that parses a value with `parse` and raises RefusedError if `parse` refuses it.

    `parse` raises InvalidRequestError. The RefusedError has the place of the value below the field `of`. Null stays
    None.
    """

    def check(value: object) -> Any:  # noqa: ANN401
        if value is None:
            return None
        try:
            return parse(value)
        except InvalidRequestError as error:
            raise RefusedError(error.value, error.allowed, below=error.field.removeprefix(of)[1:] or None) from None

    return check


_BIASES = (
    {"type": "object", "additionalProperties": {"anyOf": [NUMBER, {"const": False}]}},
    {"type": "array", "items": {"type": "array"}},
)
# How values of some types are written in JSON, for types that do not imply it.
_JSON_TYPES: Mapping[Any, Any] = MappingProxyType(
    {
        TokenBias: Annotated[TokenBias, Parsed(_parse_bias, *_BIASES)],
        Seed: Annotated[Seed, Parsed(_parse_seed, INTEGER, NULL)],
        Texts: Annotated[Texts, Parsed(_parse_texts, STRINGS)],
        Words: Annotated[Words, Parsed(_parse_words, {"type": "array", "items": {"anyOf": [STRING, INTEGERS]}})],
        StepNames: Annotated[StepNames, Parsed(_refusing(parse_order, "samplers"), STRINGS, STRING, NULL)],
        SamplerChoice: Annotated[SamplerChoice, Parsed(_refusing(parse_ai00, "sampler"), OBJECT, NULL)],
    }
)


def _range(parameter: Parameter) -> dict[str, Any]:
    """Return the JSON schema keywords `minimum` and `maximum` for a numeric parameter; no keywords for other types."""
    if parameter.type not in (float, int):
        return {}
    return {"minimum": parameter.allowed.low, "maximum": parameter.allowed.high}


if TYPE_CHECKING:
    _SamplingFields = MixBody
else:
    _SamplingFields = create_model(
        "_SamplingFields",
        __base__=MixBody,
        **{
            parameter.name: (
                _JSON_TYPES.get(parameter.type, parameter.type),
                Field(
                    default=parameter.default, description=parameter.allowed.help, json_schema_extra=_range(parameter)
                ),
            )
            for parameter in PARAMETERS
        },
    )


class SamplingBody(_SamplingFields):
    """The request fields for sampling. `SamplingParams.check` checks their ranges."""

    neutral: ClassVar = {
        "adaptive_decay": (0.9,),
        "adaptive_target": (-1, 0, -0.01),
        "do_sample": (True,),
        "early_stopping": (False,),
        "encoder_repetition_penalty": (1,),
        "epsilon_cutoff": (0,),
        "eta_cutoff": (0,),
        "guidance_scale": (1,),
        "guided_whitespace_pattern": (),
        "include_stop_str_in_output": (False,),
        "length_penalty": (1, 0),
        "logits_processors": ([],),
        "lora": ([],),
        "min_keep": (0,),
        "n_indent": (0,),
        "no_repeat_ngram_size": (0,),
        "num_beams": (1,),
        "penalize_nl": (False,),
        "penalty_alpha": (0,),
        "skip_special_tokens": (True,),
        "smoothing_factor": (0,),
        "spaces_between_special_tokens": (True, False),
        "structural_tag": (),
        "t_max_predict_ms": (-1, 0),
        "tfs": (1,),
        "tfs_z": (1,),
        "top_a": (0,),
        "truncate_prompt_tokens": (-1,),
        "use_beam_search": (False,),
    }
    aliases: ClassVar = {
        "bias": "logit_bias",
        "mirostat_mode": "mirostat",
        "nsigma": "top_n_sigma",
        "random_seed": "seed",
        "rep_pen": "repeat_penalty",
        "rep_pen_range": "repeat_last_n",
        "repetition_penalty": "repeat_penalty",
        "repetition_penalty_range": "repeat_last_n",
        "sampler_override": "sampler",
        "typical": "typical_p",
    }

    ignore_eos: bool = Field(
        default=False,
        description="Never draw the tokens that end a text, and let no text of a chat's template end the answer, which "
        "thus ends by `stop` or `max_tokens`.",
    )

    @classmethod
    def _rename(cls, fields: Mapping[str, object]) -> dict[str, object]:
        renamed = super()._rename(fields)
        if fields.get("repetition_penalty") is not None and renamed.get("repeat_last_n") is None:
            renamed["repeat_last_n"] = -1  # under vLLM's name it counts the whole prompt and all that was generated
        return renamed

    def check(self, limits: Limits) -> None:
        super().check(limits)
        params = self._params
        limits.check("max_bias_entries", "logit_bias", len(params.logit_bias))
        limits.check("max_text_bytes", "logit_bias", self.bias_characters)
        limits.check("max_bias_entries", "bad_words", len(params.bad_words))
        limits.check("max_stop_bytes", "bad_words", sum(map(len, params.bad_words)))
        if params.dry_sequence_breakers != SamplingParams().dry_sequence_breakers:
            limits.check("max_stop_strings", "dry_sequence_breakers", len(params.dry_sequence_breakers))

    def samplings(
        self, count: int, tokenize: Callable[[str], Sequence[int]], end_tokens: Sequence[int]
    ) -> list[SamplingParams]:
        """Return the sampling parameters of each of `count` answers to a prompt.

        If a seed is given, each answer gets its own. `end_tokens` are the tokens that end a text.
        """
        params = self._params.resolved(tokenize)
        if self.ignore_eos:
            bias: dict[int | str, float] = dict.fromkeys(end_tokens, -math.inf)
            for token, value in params.logit_bias.items():
                bias.setdefault(token, value)
            params = replace(params, logit_bias=bias)
        if params.seed is None:
            return [params] * count
        return [replace(params, seed=_derive_seed(params.seed, copy)) for copy in range(count)]

    @property
    def bias_characters(self) -> int:
        """The number of characters in the texts that are keys of `logit_bias`, which are tokenized later."""
        return sum(len(key) for key in self._params.logit_bias if isinstance(key, str))

    @property
    def penalises_occurrence(self) -> bool:
        """True if the request sets a penalty for tokens that occurred before, also in earlier replies."""
        return self._params.penalises_occurrence

    @property
    def _params(self) -> SamplingParams:
        return SamplingParams(**{parameter.name: getattr(self, parameter.name) for parameter in PARAMETERS})


def _derive_seed(seed: int, copy: int) -> int:
    """Return the seed of answer number `copy`, derived from the request's seed.

    Answer 0 has the request's seed itself. An odd step between the copies keeps their seeds apart, and far from
    neighbouring seeds.
    """
    return (seed + copy * 0x9E3779B97F4A7C15) % (MAX_SEED + 1)


def _response_format(value: object) -> Grammar | None:
    name = "response_format"
    match value:
        case {"type": "text", **rest} if not rest:
            return None
        case {"type": "json_object", "schema": schema, **rest} if not rest:
            return _json(schema, f"{name}.schema")
        case {"type": "json_object", "value": schema, **rest} if not rest:
            return _json(schema, f"{name}.value")
        case {"type": "json_object", **rest} if not rest:
            return Grammar("json_object", field=name)
        case {"type": "json_schema", "json_schema": dict(named), **rest} if not rest:
            return _named_schema(named, f"{name}.json_schema")
        case {"type": "json_schema", "schema": schema, **rest} if not rest:
            return _json(schema, f"{name}.schema")
    return _typed(value, name)


def _named_schema(named: Mapping[str, object], name: str) -> Grammar:
    """Return the grammar for an object in which OpenAI's clients send a JSON schema with its name.

    Raises RefusedError.
    """
    for key in named:
        if key not in ("name", "description", "schema", "strict"):
            raise RefusedError(named[key], "one of the fields name, description, schema, strict", f"json_schema.{key}")
    schema, strict = named.get("schema"), named.get("strict")
    if strict not in (None, True, False):
        raise RefusedError(strict, "true, false or null", "json_schema.strict")
    if schema is None:
        return Grammar("json_object", field=name)
    return _json(schema, f"{name}.schema", strict=strict is not False)


def _typed(value: object, name: str) -> Grammar:
    """Return the grammar for an object with `type` and `value`, as TGI's clients send it. Raises RefusedError."""
    match value:
        case {"type": "regex", "value": str(pattern), **rest} if not rest:
            return Grammar("regex", pattern, f"{name}.value")
        case {"type": "json" | "json_schema", "value": schema, **rest} if not rest:
            return _json(schema, f"{name}.value")
    raise RefusedError(value, _FORMATS)


_FORMATS = (
    '{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}, '
    '{"type": "json", "value": a schema} or {"type": "regex", "value": ...}'
)


def _grammar(value: object) -> Grammar:
    if isinstance(value, str):
        return written_grammar(value, "grammar")
    return _typed(value, "grammar")


def _structured_outputs(value: object) -> Grammar | None:
    """Return the grammar in the object `structured_outputs` of vLLM's clients, or None if it has none.

    Raises RefusedError.
    """
    if not isinstance(value, dict):
        raise RefusedError(value, f"an object with one of {', '.join(_STRUCTURED)}")
    given = {key: one for key, one in value.items() if one is not None and one is not False}
    for key in value:
        if key not in _STRUCTURED:
            raise RefusedError(value[key], f"one of the fields {', '.join(_STRUCTURED)}", key)
    if len(given) > 1:
        raise RefusedError(value, f"only one of the fields {', '.join(given)}")
    return next((_STRUCTURED[key](one, f"structured_outputs.{key}") for key, one in given.items()), None)


def _json(value: object, name: str, *, strict: bool = True) -> Grammar:
    """Return the grammar for a JSON schema, given as an object or as JSON text. Raises RefusedError."""
    if isinstance(value, str):
        return Grammar("json_schema", value, name, strict=strict)
    if isinstance(value, dict | bool):
        return json_grammar(value, name, strict=strict)
    raise RefusedError(value, "a JSON schema")


def _json_object(value: object, name: str) -> Grammar:
    if value is not True:
        raise RefusedError(value, "true or null")
    return Grammar("json_object", field=name)


def _choice(value: object, name: str) -> Grammar:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise RefusedError(value, "a list of strings that is not empty")
    return choice_grammar(value, name)


Parse: TypeAlias = Callable[[Any, str], Grammar]
"""Returns the grammar in a value of the field with this name. Raises RefusedError."""


def _of_text(what: str, make: Callable[[str, str], Grammar]) -> Parse:
    def parse(value: object, name: str) -> Grammar:
        if not isinstance(value, str):
            raise RefusedError(value, f"{what} as a string")
        return make(value, name)

    return parse


_regex = _of_text("a regular expression", partial(Grammar, "regex"))
_written = _of_text("a grammar", written_grammar)
_kbnf = _of_text("a grammar of kbnf", partial(Grammar, "kbnf"))
_STRUCTURED: Mapping[str, Parse] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _written,
}


def _named(parse: Parse) -> Callable[[Any, ValidationInfo], Grammar]:
    """Return a function for pydantic that parses a field of any name."""
    return lambda value, info: parse(value, str(info.field_name))


def _token_ids(value: object) -> Grammar | None:
    """Return the grammar of all texts of the tokens with the ids in `value`."""
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(type(token) is int and token >= 0 for token in value):
        raise RefusedError(value, "null, or token ids, at least one")
    return Grammar("tokens", to_json(sorted(set(value))), "allowed_token_ids", is_written=False)


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
ResponseFormat: TypeAlias = Annotated[Grammar | None, Parsed(_response_format, OBJECT, NULL)]
StructuredOutputs: TypeAlias = Annotated[Grammar | None, Parsed(_structured_outputs, OBJECT, NULL)]
AnyGrammar: TypeAlias = Annotated[Grammar | None, Parsed(_grammar, OBJECT, STRING, NULL)]
JsonSchema: TypeAlias = Annotated[Grammar | None, Parsed(_named(_json), OBJECT, STRING, NULL)]
Regex: TypeAlias = Annotated[Grammar | None, Parsed(_named(_regex), STRING, NULL)]
ChosenText: TypeAlias = Annotated[Grammar | None, Parsed(_named(_choice), STRINGS, NULL)]
AllowedTokenIds: TypeAlias = Annotated[Grammar | None, Parsed(_token_ids, _IDS, NULL)]
WrittenGrammar: TypeAlias = Annotated[Grammar | None, Parsed(_named(_written), STRING, NULL)]
BnfSchema: TypeAlias = Annotated[Grammar | None, Parsed(_named(_kbnf), STRING, NULL)]


class GrammarBody(SamplingBody):
    """The request fields that restrict an answer to a grammar. At most one such field may be set."""

    aliases: ClassVar = {"ebnf": "guided_grammar", "regex": "guided_regex"}

    response_format: ResponseFormat = Field(
        default=None,
        description='The form of the answer: `{"type": "text"}`, `{"type": "json_object"}`, '
        '`{"type": "json_schema", "json_schema": {"name": ..., "schema": ..., "strict": ...}}`, '
        '`{"type": "json_object", "schema": ...}`, the same with `value`, `{"type": "json", "value": a schema}` or '
        '`{"type": "regex", "value": ...}`. A schema is refused if it has a keyword that a grammar can\'t '
        "enforce. With `strict` false, such keywords are ignored.",
    )
    structured_outputs: StructuredOutputs = Field(
        default=None, description="An object with `json`, `json_object`, `regex`, `choice` or `grammar`."
    )
    guided_json: JsonSchema = Field(default=None, description="A JSON schema that the answer follows.")
    guided_regex: Regex = Field(
        default=None, description="A regular expression that the whole answer matches, in the syntax of Rust's `regex`."
    )
    guided_choice: ChosenText = Field(default=None, description="Texts. The answer is one of them.")
    allowed_token_ids: AllowedTokenIds = Field(
        default=None,
        description="Ids of tokens. The answer has only these; it can only end early if one of them ends it.",
    )
    guided_grammar: WrittenGrammar = Field(
        default=None, description="A grammar that the answer follows: llama.cpp's GBNF, or llguidance's Lark."
    )
    grammar: AnyGrammar = Field(
        default=None,
        description='As `guided_grammar`; or an object `{"type": "json", "value": a schema}` or `{"type": "regex", '
        '"value": ...}`.',
    )
    json_schema: JsonSchema = Field(default=None, description="As `guided_json`.")
    bnf_schema: BnfSchema = Field(
        default=None,
        description="A grammar of kbnf that the answer follows. The answer ends as soon as it is complete.",
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        given = [name for name in _GRAMMAR_FIELDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequestError(given[1], getattr(self, given[1]).text, f"null, since {given[0]} is given, too")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if (grammar := self.answer_grammar) is not None:
            limits.check("max_grammar_bytes", grammar.field, len(grammar.text.encode(errors="replace")))

    @property
    def answer_grammar(self) -> Grammar | None:
        """The grammar that the answer follows; None allows any text."""
        return next((one for name in _GRAMMAR_FIELDS if (one := getattr(self, name)) is not None), None)


_GRAMMAR_FIELDS = [name for name in GrammarBody.model_fields if name not in SamplingBody.model_fields]
