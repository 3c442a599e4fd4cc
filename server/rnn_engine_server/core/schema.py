"""The base class of all request bodies, and the parts of answers that all APIs share: errors, token counts, times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from inspect import get_annotations
from types import MappingProxyType
from typing import Any, ClassVar, NotRequired, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails
from typing_extensions import TypedDict, TypeIs

from rnn_engine.errors import InvalidRequestError
from rnn_engine.pauses import pause
from rnn_engine_server.core.json_text import WholeNumbers, parse_json
from rnn_engine_server.core.settings import Limits

T = TypeVar("T")
_DEFAULT_LIMITS = Limits()
_MOST_NAMES = 30  # of fields that an error lists
_MOST_UNKNOWN = 100  # different unknown fields of a body: to look for what each may be a misspelling of takes time
_MISSPELLED = 0.87  # the least likeness (`difflib`) to a field of which a name counts as a misspelling


# Names that routes have for the same thing: what the model reads, and how it is to answer.
_TEXTS = frozenset(
    {"prompt", "prompts", "input", "inputs", "messages", "context", "query", "queries", "question", "document"}
    | {"documents", "text", "texts", "content", "contents", "passage", "passages", "sentence", "sentences"}
)
_SYSTEM_TEXTS = frozenset({"system", "system_prompt", "instructions"})


class RefusedError(ValueError):
    """Raised by the check of a single value that is not allowed. Pydantic adds the value's place in the body."""

    def __init__(self, value: object, allowed: str, below: str | None = None) -> None:
        self.value = value
        self.allowed = allowed
        self.below = below  # the part of the checked object that the value is
        super().__init__(allowed)


@dataclass(slots=True)
class UnknownFields:
    """How to treat unknown fields of a body: reject the body, or ignore them and collect their names.

    A field that is probably a misspelled one of the body's own is rejected in any case.
    """

    refuse: bool = True
    left_out: set[str] = field(default_factory=set)


class UnknownFieldError(InvalidRequestError):
    """Raised if a request has a field that this server does not know. `allowed` is advice for the client."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed, f"unknown field {field!r}; {allowed}")


class _UnknownError(RefusedError):
    """Raised for a field that an object does not have. `allowed` is advice for the client."""


# JSON schemas of the forms that values may have.
Schema: TypeAlias = dict[str, Any]
NULL: Schema = {"type": "null"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
STRING: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
INTEGERS: Schema = {"type": "array", "items": INTEGER}
STRINGS: Schema = {"type": "array", "items": STRING}


class Parsed:
    """Annotates a type whose values pydantic makes by `parse`, from JSON that has one of some `forms`: JSON schemas.

    `parse` raises RefusedError for other values. It may take pydantic's ValidationInfo, too.
    """

    def __init__(self, parse: Callable[..., object], *forms: Schema) -> None:
        self._validator = PlainValidator(parse)
        self._schema = forms[0] if len(forms) == 1 else {"anyOf": list(forms)}

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return self._validator.__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> Schema:
        return deepcopy(self._schema)  # pydantic adds to it


@dataclass(frozen=True, slots=True)
class Bounded:
    """Annotates a field of a body whose value the server's limits bound, unless it is None.

    `check` takes the limits, the field's name and its value, and raises InvalidRequestError.
    """

    check: Callable[[Limits, str, Any], None]


@dataclass(frozen=True, slots=True)
class Only:
    """The values without effect of a field that this server does not have, and why it refuses others."""

    values: tuple[object, ...]
    because: str = "this server does not have it"


class RequestBody(BaseModel):
    """The base class of JSON request bodies. Values are checked strictly: none is converted to another type silently.

    If a field has a default, null means that default (official clients send it so). An unknown field is refused, unless
    it is null or the server's settings leave such fields out. A field that other systems have and that would change the
    answer is refused in any case.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    # What a body accepts beside its fields. A subclass adds to what its bases have, unless it has a field of that name.
    ignored: ClassVar[frozenset[str]] = frozenset()  # fields that are accepted and have no effect here
    neutral: ClassVar[Mapping[str, Only | tuple[object, ...]]] = {}  # other systems' field -> values without effect
    lacking: ClassVar[Mapping[str, tuple[object, ...]]] = {}  # the same, but unknown with any other value
    aliases: ClassVar[Mapping[str, str]] = {}  # another name of a field -> the field
    unfolded: ClassVar[Mapping[str, Schema]] = {}  # what `_unfold` takes away -> its JSON schema

    keeps_null: ClassVar[frozenset[str]] = frozenset()  # fields with a default in which null has another meaning
    may_be_empty: ClassVar[bool] = False  # a body without bytes stands for an object without fields
    always_strict: ClassVar[bool] = False  # refuse unknown fields in any case, since what is done can't be undone
    plain: ClassVar[frozenset[str]] = frozenset()  # fields to which none of these rules applies

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:  # noqa: ANN401
        own = vars(cls)
        named = {*get_annotations(cls), *own.get("neutral", ()), *own.get("lacking", ())}
        bases = [base for base in reversed(cls.__bases__) if issubclass(base, RequestBody)]
        cls.ignored = frozenset().union(*(base.ignored for base in bases)) - named | own.get("ignored", frozenset())
        for table in ("neutral", "lacking", "aliases", "unfolded"):
            found = {name: value for base in bases for name, value in getattr(base, table).items()}
            kept = {name: value for name, value in found.items() if name not in named or table == "aliases"}
            setattr(cls, table, kept | own.get(table, {}))
        cls.plain = frozenset(cls.model_fields) - cls.ignored - cls.neutral.keys() - cls.aliases.keys()

    @classmethod
    def parse(
        cls, body: bytes | bytearray, limits: Limits = _DEFAULT_LIMITS, unknown: UnknownFields | None = None
    ) -> Self:
        """Parse and check the JSON text `body`. Raises InvalidRequestError, also if it exceeds `limits`.

        `unknown` says what to do with unknown fields, and collects their names. Without it they are refused.
        """
        return cls.from_value(parse_json(b"{}" if cls.may_be_empty and not body else body, "body"), limits, unknown)

    @classmethod
    def from_value(cls, data: object, limits: Limits = _DEFAULT_LIMITS, unknown: UnknownFields | None = None) -> Self:
        """Check a body that `parse_json` has parsed. See `parse`."""
        try:
            parsed = cls.model_validate(data, context=unknown)
            parsed.check(limits)
        except ValidationError as error:
            raise cls._as_spelled(data, _translate(error.errors(include_url=False), data)) from None
        except InvalidRequestError as error:
            raise cls._as_spelled(data, error) from None
        return parsed

    @classmethod
    def _as_spelled(cls, data: object, error: InvalidRequestError) -> InvalidRequestError:
        """Return `error` with its field under the name that the client sent, which may be an alias."""
        if not isinstance(data, dict) or type(error) is not InvalidRequestError:
            return error
        objects = [data, *(data[name] for name in cls.unfolded if isinstance(data.get(name), dict))]
        sent = {name for fields in objects for name in fields}
        field, dot, below = error.field.partition(".")
        for alias, name in cls.aliases.items():
            if name == field and alias in sent and name not in sent:
                return InvalidRequestError(f"{alias}{dot}{below}", error.value, error.allowed)
        return error

    def check(self, limits: Limits) -> None:
        """Raise InvalidRequestError for the first field that asks for more than `limits` allow."""
        for name, described in type(self).model_fields.items():
            for note in described.metadata:
                if isinstance(note, Bounded) and (value := getattr(self, name)) is not None:
                    note.check(limits, name, value)

    @model_validator(mode="before")
    @classmethod
    def _admit(cls, data: object, info: ValidationInfo[UnknownFields | None]) -> dict[str, object]:
        if not isinstance(data, dict):
            raise RefusedError(data, "a JSON object")
        pause()
        data = cls._unfold(data)
        if data.keys() <= cls.plain and None not in data.values():
            return data
        known = frozenset({*cls.model_fields, *cls.aliases, *cls.ignored})
        data = {name: value for name, value in data.items() if value is not None or name in known}  # null asks nothing
        for name, value in data.items():
            if name in cls.neutral:
                only = only_of(cls.neutral[name])
                if value is not None and not _is_one_of(value, only.values):
                    words = " or ".join(["null", *map(repr, only.values)])
                    raise RefusedError(value, f"{words}, since {only.because}", below=name)
            elif name not in known and not _is_one_of(value, cls.lacking.get(name, ())):
                if value and (advice := cls._find_same(name, data)):
                    raise _UnknownError(value, advice, below=name)
                if cls.always_strict or info.context is None or info.context.refuse or _misspelled(name[:80], known):
                    raise _UnknownError(value, _advice(name[:80], known), below=name[:80])
                info.context.left_out.add(name)
                if len(info.context.left_out) > _MOST_UNKNOWN:
                    raise _UnknownError(value, f"a body may have at most {_MOST_UNKNOWN} of them", below=name[:80])
        without_effect = cls.ignored | cls.neutral.keys() | (data.keys() - known)
        fields = {name: value for name, value in data.items() if name not in without_effect}
        return {
            name: value
            for name, value in cls._rename(fields).items()
            if value is not None or name in cls.keeps_null or cls.model_fields[name].is_required()
        }

    @classmethod
    def _find_same(cls, name: str, data: Mapping[str, object]) -> str | None:
        """Return advice for the unknown field `name` if it is another route's for something that this body lacks.

        None if this body does not have that thing, or if it was sent under its name here.
        """
        own = [*cls.model_fields, *cls.aliases, *cls.unfolded]
        same = next((names for names in (_TEXTS, _SYSTEM_TEXTS) if name in names), frozenset())
        fields = [field for field in own if field in same]
        if same is _SYSTEM_TEXTS and not fields and "messages" in own:
            return "a message of the role system in 'messages'"
        return f"did you mean {fields[0]!r}?" if fields and not any(data.get(field) for field in fields) else None

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        """Return a body's fields to validate. Subclasses unpack nested objects here, or derive fields from others."""
        return fields

    @classmethod
    def _rename(cls, fields: Mapping[str, object]) -> dict[str, object]:
        renamed: dict[str, object] = {}
        for name, value in fields.items():
            field = cls.aliases.get(name, name)
            if renamed.get(field) is None:
                renamed[field] = value
            elif value is not None and renamed[field] != value:
                raise RefusedError(value, f"the same value as {field}, which is another name for it", below=name)
        return renamed


def only_of(entry: Only | tuple[object, ...]) -> Only:
    """Return an entry of `RequestBody.neutral` with its reason."""
    return entry if isinstance(entry, Only) else Only(entry)


@lru_cache(4096)  # a client sends the same unknown fields with every request
def _misspelled(name: str, known: frozenset[str]) -> str | None:
    """Return the one of the `known` fields that `name` is a misspelling of: one wrong letter or so. None if it is none.

    Upper case, hyphens and underscores make no difference, so `maxTokens` is a misspelling of `max_tokens`.
    """
    plain = {_plain(field): field for field in sorted(known)}
    wanted = _plain(name)
    nearest = get_close_matches(wanted, plain, n=1, cutoff=_MISSPELLED)
    nearest += [field for field in plain if len(field) > 3 and sorted(field) == sorted(wanted)]  # such as "inptu"
    return plain[nearest[0]] if nearest else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _advice(name: str, known: frozenset[str]) -> str:
    """Return advice for a client that sent an unknown field: the field that was probably meant, or all if few."""
    nearest = _misspelled(name, known) or next(iter(get_close_matches(name, known, n=1)), None)
    if nearest:
        return f"did you mean {nearest!r}?"
    if len(known) > _MOST_NAMES:
        return "the page /docs of this server lists the known fields"
    return f"the known fields are {', '.join(sorted(known))}"


def is_integers(value: object) -> TypeIs[list[int]]:
    """Return True if `value` is a list of integers; booleans do not count as integers."""
    return isinstance(value, WholeNumbers) or (isinstance(value, list) and {int}.issuperset(map(type, value)))


def _is_one_of(value: object, values: Collection[object]) -> bool:
    """Return True if `value` is among `values`; true and 1 are two values, as in JSON."""
    return any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in values)


_EXPECTED: Mapping[str, str] = MappingProxyType(
    {
        "missing": "a value; the field is required",
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "a string",
        "list_type": "a list",
        "dict_type": "an object",
        "greater_than": "more than {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than_equal": "at most {le}",
        "too_short": "at least {min_length} item(s)",
        "too_long": "at most {max_length} items",
        "string_too_short": "at least {min_length} character(s)",
        "string_too_long": "at most {max_length} characters",
        "string_pattern_mismatch": "a text of the form {pattern}",
        "literal_error": "{expected}",
    }
)


def _translate(errors: Sequence[ErrorDetails], data: object) -> InvalidRequestError:
    """Return the error for the first of `errors`, which are those of a body that was parsed to `data`."""
    error = errors[0]
    place, outer = [str(part) for part in error["loc"]], error["loc"][:-1]
    refused = error.get("ctx", {}).get("error")
    if isinstance(refused, RefusedError):
        place += [] if refused.below is None else [refused.below]
        kind = UnknownFieldError if isinstance(refused, _UnknownError) else InvalidRequestError
        return kind(".".join(place) or "body", refused.value, refused.allowed)
    if error["type"] == "missing":
        field = ".".join(place)
        return InvalidRequestError(field, None, _EXPECTED["missing"], f"{field}: the field is required")
    tried = [error]
    if outer and _value_at(data, outer) is error["input"]:  # of several types: the last part of its place names one
        place.pop()
        tried = [each for each in errors if each["loc"][:-1] == outer]
    return InvalidRequestError(".".join(place), error["input"], " or ".join(dict.fromkeys(map(_allowed, tried))))


def _value_at(data: object, place: Sequence[int | str]) -> object:
    """Return the value at a place in a body, or None."""
    for part in place:
        try:
            data = data[part]  # type: ignore[index]  # other types raise TypeError
        except (TypeError, LookupError):
            return None
    return data


def _allowed(error: ErrorDetails) -> str:
    expected = _EXPECTED.get(error["type"])
    return error["msg"] if expected is None else expected.format(**error.get("ctx", {}))


def described(kind: type[T], source: object, /, **others: object) -> T:
    """Return a part of an answer: `others`, and for the further fields of the TypedDict `kind` attributes of `source`.

    The attributes have the names of the fields.
    """
    names = kind.__annotations__.keys()
    return kind(**{name: others[name] if name in others else getattr(source, name) for name in names})


class ErrorDetail(TypedDict):
    """The description of an error in an error answer.

    If prompts are too long, `n_prompt_tokens` is how many tokens they have and `n_ctx` how many are allowed. If a
    grammar, a regular expression or the text of a JSON schema is wrong, `line` and `column` are the place of the
    mistake, if that is known. Both count from 1, and `column` counts characters.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: NotRequired[int]
    n_ctx: NotRequired[int]
    line: NotRequired[int]
    column: NotRequired[int]


class ErrorBody(TypedDict):
    """The body of every answer that is not a success, and of the last event of a stream that fails."""

    error: ErrorDetail


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    """The token counts of a request and its answers. A prompt counts once, even if it has several answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(TypedDict):
    """Token counts and times in milliseconds of a request's prompt and of its answer.

    `cache_n` tokens of the prompt were known and not run; `prompt_n` counts the others. The answer's milliseconds count
    from its first token, which comes with the prompt, and its rates are those of the tokens after it. `draft_n` tokens
    were run ahead of what was drawn, and `draft_n_accepted` of them were drawn; both are absent if there were none.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


class PromptProgressBody(TypedDict):
    """The progress of a prompt that is being run, in tokens.

    `total` is the prompt's number of tokens, `cache` how many were known, and `processed` how many are done, the known
    ones too. `time_ms` counts from the first of these events.
    """

    total: int
    cache: int
    processed: int
    time_ms: float
