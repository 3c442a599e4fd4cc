"""The schemas of the bodies of Ollama's API: requests, answers and errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypeAlias

from pydantic import AfterValidator, BeforeValidator, FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.chat_template import Role
from rnn_engine.chat_template.tools import to_json
from rnn_engine.grammar import Grammar, json_grammar
from rnn_engine_server.apis.common.generation import GenerationBody
from rnn_engine_server.apis.common.histories import Info, history
from rnn_engine_server.apis.common.messages import (
    CalledFunction,
    Content,
    Message,
    RoleWord,
    ToolBody,
    ToolCallBody,
    client_tools,
    earlier_arguments,
    leave_out_of_message,
)
from rnn_engine_server.apis.common.states import SavedState
from rnn_engine_server.apis.openai.embeddings import EmbeddingsRequest
from rnn_engine_server.apis.openai.schemas import CompletionRequest, TranslatedChat, shared_fields
from rnn_engine_server.core.schema import NULL, OBJECT, Only, Parsed, RefusedError, RequestBody
from rnn_engine_server.core.settings import Limits

ModelName: TypeAlias = Annotated[str, AfterValidator(lambda name: name.removesuffix(":latest"))]


class OllamaOptions(GenerationBody):
    """Options for generating an answer: Ollama's own, and the fields of this server."""

    ignored: ClassVar = frozenset(
        {
            "draft_num_predict",
            "embedding_only",
            "f16_kv",
            "logits_all",
            "low_vram",
            "main_gpu",
            "num_batch",
            "num_ctx",
            "num_gpu",
            "num_keep",
            "num_thread",
            "numa",
            "penalize_newline",
            "use_mlock",
            "use_mmap",
            "vocab_only",
        }
    )
    neutral: ClassVar = {"n": Only((1,), because="there is one answer")}

    max_tokens: Annotated[int, AfterValidator(lambda count: max(count, -1))] = Field(
        default=-1, description="The most tokens to generate; -1 and -2: as many as the limits allow."
    )


def _parse_format(value: object) -> Grammar | None:
    match value:
        case None | "":
            return None
        case "json":
            return Grammar("json_object", field="format")
        case dict():
            return json_grammar(value, "format", strict=False)
    raise RefusedError(value, '"json" or a JSON schema')


Format: TypeAlias = Annotated[Grammar | None, Parsed(_parse_format, {"const": "json"}, OBJECT, NULL)]
_IMAGES = {"images": Only(([],), because="the model reads and writes text only")}
_ONLY_OPENAI = "only OpenAI's routes return them"


class OllamaGeneration(RequestBody):
    """The request fields that Ollama's chats and generations share."""

    ignored: ClassVar = frozenset({"keep_alive", "truncate", "shift"})
    neutral: ClassVar = {
        "logprobs": Only((False,), because=_ONLY_OPENAI),
        "top_logprobs": Only((0,), because=_ONLY_OPENAI),
    }

    model: ModelName = Field(default="", description="The model; the default one if it is empty.")
    stream: bool = Field(default=True, description="Send the answer as lines of JSON while it is made.")
    format: Format = Field(default=None, description='The form of the answer: `"json"` or a JSON schema.')
    options: OllamaOptions | None = Field(default=None, description="How the answer is made.")
    think: bool | Literal["low", "medium", "high"] | None = Field(
        default=None, description="Whether, and how much, to think before the answer, if the chat template supports it."
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        _ = self.translated  # raises if fields contradict each other

    def check(self, limits: Limits) -> None:
        if self.translated is not None:
            self.translated.check(limits)

    @property
    def cache_salt(self) -> str | None:
        return None if self.options is None else self.options.cache_salt

    @property
    def fields(self) -> dict[str, Any]:
        """The values of those request fields that all APIs' generations share, by the names in `GenerationBody`."""
        found = {**shared_fields(self.options or OllamaOptions()), "model": self.model, "stream": self.stream}
        return found if self.format is None else {**found, "json_schema": self.format}

    @cached_property
    @abstractmethod
    def translated(self) -> TranslatedChat | CompletionRequest | None:
        """The request as OpenAI's chat or completion request; None if it has nothing to answer."""

    def chat_of(self, messages: list[Message], tools: list[ToolBody]) -> TranslatedChat:
        """Return OpenAI's chat request with these `messages` and `tools`, and with the other fields of this request."""
        fields = self.fields
        if self.think is not None:
            fields["enable_thinking"] = self.think is not False
        if isinstance(self.think, str):
            fields["reasoning_effort"] = self.think
        return TranslatedChat.model_construct(messages=messages, tools=tools, **fields)


class OllamaFunction(RequestBody):
    ignored: ClassVar = frozenset({"index"})

    name: str = Field(description="The tool's name.")
    arguments: Annotated[dict[str, Any], BeforeValidator(earlier_arguments)] = Field(
        default={}, description="An object, or the text of one."
    )


class OllamaCall(RequestBody):
    """A tool call that the assistant made in an earlier message."""

    ignored: ClassVar = frozenset({"type"})

    id: str = Field(default="", description="The call's id, which its result may name.")
    function: OllamaFunction = Field(description="What was called.")


class OllamaMessage(RequestBody):
    """One message of a conversation.

    The fields of this server's own answers are accepted, so that a client may send them back.
    """

    neutral: ClassVar = _IMAGES  # those of earlier messages and of tools' results are left out

    role: RoleWord = Field(description="system, user, assistant or tool.")
    content: Content = Field(default="", description="A text.")
    thinking: str | None = Field(default=None, description="The assistant's reasoning before the text.")
    tool_calls: Annotated[list[OllamaCall], FailFast()] = Field(
        default=[], description="The calls that the assistant made."
    )
    tool_name: str | None = Field(default=None, description="Of a tool's result: the tool.")
    tool_call_id: str | None = Field(default=None, description="Of a tool's result: the call that it answers.")

    @property
    def message(self) -> Message:
        """The message in the form of OpenAI's requests."""
        return Message.model_construct(
            role=self.role,
            content=self.content,
            reasoning_content=self.thinking,
            tool_calls=[_call(call) for call in self.tool_calls],
            name=self.tool_name,
            tool_call_id=self.tool_call_id,
        )


def _call(call: OllamaCall) -> ToolCallBody:
    function = CalledFunction.model_construct(name=call.function.name, arguments=to_json(call.function.arguments))
    return ToolCallBody.model_construct(id=call.id, function=function)


def _leave_out_of(message: dict[str, Any], info: Info) -> dict[str, Any]:
    if message.get("images"):
        assert info.context is not None
        info.context.left_out.add("messages.images")
        message = {name: value for name, value in message.items() if name != "images"}
    return leave_out_of_message(message, info)


class OllamaChatRequest(OllamaGeneration):
    """A request to continue a conversation, with Ollama's field names."""

    messages: Annotated[list[OllamaMessage], FailFast(), history(_leave_out_of)] = Field(
        default=[], description="The conversation so far. Without messages, the model is only loaded."
    )
    tools: Annotated[list[ToolBody], FailFast(), client_tools("function")] = Field(
        default=[], description="The tools that the model may call."
    )

    @cached_property
    def translated(self) -> TranslatedChat | None:
        return self.chat_of([message.message for message in self.messages], self.tools) if self.messages else None


class OllamaGenerateRequest(OllamaGeneration):
    """A request to answer a text, or with `raw` to continue it."""

    neutral: ClassVar = {
        **_IMAGES,
        "context": Only(([],), because="a conversation goes on with /api/chat or with a state"),
        "suffix": Only(("",), because="the model can't fill in text before an end"),
        "template": Only(("",), because="the chat template is the model's"),
    }

    prompt: str = Field(default="", description="The user's message. Without it, the model is only loaded.")
    system: str = Field(default="", description="Instructions for the model.")
    raw: bool = Field(default=False, description="Continue the prompt as it is, without the chat template.")

    @cached_property
    def translated(self) -> TranslatedChat | CompletionRequest | None:
        if not self.prompt:
            return None
        if self.raw:
            return CompletionRequest.model_construct(prompt=(self.prompt,), **self.fields)
        said = {Role.SYSTEM: self.system, Role.USER: self.prompt}
        messages = [Message.model_construct(role=role, content=text) for role, text in said.items() if text]
        return self.chat_of(messages, [])


class ShowRequest(RequestBody):
    """A request for the details of a model."""

    ignored: ClassVar = frozenset({"verbose"})
    aliases: ClassVar = {"name": "model"}

    model: ModelName = Field(description="The model's name.")


_OF_THE_HUB = ("hf.co/", "huggingface.co/")


def _without_host(name: str) -> str:
    return next((name.removeprefix(host) for host in _OF_THE_HUB if name.startswith(host)), name)


class PullRequest(RequestBody):
    """A request to fetch a model."""

    ignored: ClassVar = frozenset({"insecure"})
    aliases: ClassVar = {"name": "model"}

    model: Annotated[ModelName, AfterValidator(_without_host)] = Field(
        min_length=1,
        description="The name of a served model, or a name that `rnn-engine pull` takes: a short name such as "
        "`rwkv7-1.5b`, or `OWNER/REPOSITORY[:FILE]` of the Hugging Face Hub.",
    )
    stream: bool = Field(default=True, description="Report the progress, line by line.")


class PullStatus(TypedDict):
    """The progress of fetching a model; the last `status` is `success`. `total` and `completed` are bytes of a file."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]


class EmbedRequest(EmbeddingsRequest):
    """A request for vectors of texts. No text is cut, so `truncate` has no effect, nor have `options`."""

    ignored: ClassVar = frozenset({"keep_alive", "options", "truncate"})

    model: ModelName | None = Field(default=None, description="The model's name; null is the default one.")
    encoding_format: Literal["float"] = Field(default="float", description="Only numbers.")


class OlderEmbedRequest(EmbedRequest):
    """A request for the vector of one text, to Ollama's older route for embeddings."""

    aliases: ClassVar = {"prompt": "input"}


class Embedded(TypedDict):
    """The answer with a vector for each text, in their order.

    Durations are in nanoseconds; `prompt_eval_count` counts the tokens of all texts.
    """

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OlderEmbedded(TypedDict):
    embedding: list[float]


class OllamaCalledFunction(TypedDict):
    name: str
    arguments: Mapping[str, Any]


class OllamaAnsweredCall(TypedDict):
    """A tool call in an answer, which the client is asked to make. `arguments` are empty if the answer was cut."""

    id: str
    function: OllamaCalledFunction


class OllamaAssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaAnsweredCall]]


class OllamaEnd(SavedState):
    """The fields that every line of an answer has.

    Only the last line has counts of tokens, and durations in nanoseconds if times are taken.
    """

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


class OllamaChat(OllamaEnd):
    """The answer to a chat. With `stream`, each line of the answer has this form."""

    message: OllamaAssistantMessage


class OllamaText(OllamaEnd):
    """The answer to a text. With `stream`, each line of the answer has this form."""

    response: str
    thinking: NotRequired[str]


class OllamaError(TypedDict):
    """The body of every answer of Ollama's routes that is not a success, and the last line of a stream that fails."""

    error: str


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    """The description of a model. `size` is how many bytes it takes on the device, 0 if that is unknown."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    size_vram: NotRequired[int]
    expires_at: NotRequired[str]


class OllamaModels(TypedDict):
    models: list[OllamaModel]


class OllamaModelFacts(TypedDict):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: Mapping[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(TypedDict):
    """The version of Ollama's API that this server implements."""

    version: str
