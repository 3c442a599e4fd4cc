"""OpenAI's chat completions: generate the next message of a conversation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from typing_extensions import TypedDict

from rnn_engine.chat_template import ChatTemplate, Role, Tool, WorldTemplate, count_leading_system
from rnn_engine.chat_template.answer import (
    THINK_CLOSES,
    AnswerForm,
    AnswerPart,
    AnswerReader,
    Piece,
    joined,
    whole_calls,
)
from rnn_engine.errors import check_range
from rnn_engine.grammar import Grammar
from rnn_engine.interface import EngineLike
from rnn_engine.loading.parts import MAX_LOGPROBS
from rnn_engine.operations.chat_prompt import ChatPrompt, make_chat_prompt, text_before_chat, tool_grammar
from rnn_engine.pauses import pause
from rnn_engine.requests import Finished, GenerateRequest, TextDelta, TokenInfo, empty_prompt
from rnn_engine.sampling.masks import Thinking
from rnn_engine_server.apis.common.answering import Outcome, Prepared
from rnn_engine_server.apis.common.generation import note_slot, prompt_logprobs, text_of
from rnn_engine_server.apis.common.states import ResolvedState, WeightedState, mix_calls, resolve_starts
from rnn_engine_server.apis.openai.dialect import ChoicesDialect, ContentTokens, chat_logprobs
from rnn_engine_server.apis.openai.schemas import (
    AnsweredCall,
    AssistantMessage,
    CallDelta,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    FinishWord,
    InputTokens,
)
from rnn_engine_server.core.call import CALL_WORK, SHORT_WORK, Call, work
from rnn_engine_server.core.handlers import Answer, Long, RouteTable
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.core.settings import Limits, ServerSettings


class ChatDialect(ChoicesDialect[ChatRequest]):
    """Makes OpenAI's choices of chat completions.

    The white space with which the model begins after the prompt's `Assistant:` is no part of an answer. `read` is the
    prompt's text, for `verbose`.
    """

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, prepared: Prepared[ChatRequest], read: str = "") -> None:
        super().__init__(prepared)
        body = self.body
        self._read = read
        self._tokens = [ContentTokens() for _ in prepared.requests]
        self._wants_tokens = body.logprobs or body.return_token_ids
        self._echo = (body.messages[-1].content or "") if body.echo and body.continues else ""

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> ChatChunkChoice:  # noqa: ARG002
        choice = chat_chunk(index, {"role": "assistant", "content": self._echo or None, "refusal": None})
        if self.body.return_token_ids:
            choice["prompt_token_ids"] = list(self.prepared.requests[index].prompt)
        return choice

    def delta(self, index: int, delta: TextDelta) -> ChatChunkChoice | str | None:
        reader = self.readers[index]
        if reader.is_plain and not self._wants_tokens:
            return delta.text or None
        pieces = reader.feed(delta.text)
        if not self._wants_tokens:
            return self._without_tokens(index, pieces)
        choice = chat_chunk(index, self._delta_of(index, pieces) or {"content": ""})
        choice["logprobs"] = self._logprobs(self._tokens[index].divide(delta.tokens, pieces))
        if self.body.return_token_ids:
            choice["token_ids"] = [info.token for info in delta.tokens]
        return choice

    def text_chunk(self, index: int, text: str) -> ChatChunkChoice:
        return chat_chunk(index, {"content": text})

    def closing(self, index: int, finished: Finished) -> ChatChunkChoice:
        reader = self.readers[index]
        pieces = reader.finish()
        choice = chat_chunk(index, self._delta_of(index, pieces))
        if self.body.logprobs and pieces:
            choice["logprobs"] = self._logprobs(self._tokens[index].divide((), pieces))
        return {**choice, "finish_reason": self._finish_word(reader, finished), "seed": finished.seed}

    def choice(self, index: int, outcome: Outcome) -> ChatChoice:
        reader, finished = self.readers[index], outcome.end
        pieces = [*reader.feed(outcome.text), *reader.finish()]
        entries = self._tokens[index].divide(outcome.tokens, pieces) if self.body.logprobs else []
        choice: ChatChoice = {
            "index": index,
            "message": self._message(pieces if finished.reason == "length" else whole_calls(reader, pieces)),
            "logprobs": self._logprobs(entries),
            "finish_reason": self._finish_word(reader, finished),
            "seed": finished.seed,
        }
        if self.body.return_token_ids:
            choice["prompt_token_ids"] = list(self.prepared.requests[index].prompt)
            choice["token_ids"] = [info.token for info in outcome.tokens]
        return choice

    def more(self, first: Outcome) -> Mapping[str, object]:
        fields: dict[str, object] = {"__verbose": {"prompt": self._read}} if self.body.verbose else {}
        if self.body.return_token_ids:
            fields["prompt_token_ids"] = list(self.prepared.requests[0].prompt)  # where vLLM has them
        if self.body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(self.engine, first.prompt, self.body.prompt_logprobs)
        return fields

    def _without_tokens(self, index: int, pieces: Sequence[Piece]) -> ChatChunkChoice | str | None:
        delta = self._delta_of(index, pieces)
        if delta.keys() == {"content"}:
            return delta["content"]
        return chat_chunk(index, delta) if delta else None

    def _delta_of(self, index: int, pieces: Sequence[Piece]) -> ChatDelta:
        """Return the next pieces of answer number `index` in the form of a stream's delta.

        Calls are numbered, and each new call has an id.
        """
        delta: ChatDelta = {}
        number = self.readers[index].num_calls - sum(piece.part is AnswerPart.CALL for piece in pieces) - 1
        for piece in pieces:
            match piece.part:
                case AnswerPart.CONTENT:
                    delta["content"] = (delta.get("content") or "") + piece.text
                case AnswerPart.REASONING if self.body.include_reasoning:
                    delta["reasoning_content"] = delta["reasoning"] = delta.get("reasoning", "") + piece.text
                case AnswerPart.CALL:
                    number += 1
                    self._begin_call(delta, number, piece.text)
                case AnswerPart.ARGUMENTS:
                    self._add_arguments(delta, number, piece.text)
        return delta

    def _begin_call(self, delta: ChatDelta, number: int, name: str) -> None:
        if self.body.functions:
            delta["function_call"] = {"name": name, "arguments": ""}
            return
        call: CallDelta = {"index": number, "function": {"name": name, "arguments": ""}}
        delta.setdefault("tool_calls", []).append({**call, "id": _call_id(), "type": "function"})

    def _add_arguments(self, delta: ChatDelta, number: int, text: str) -> None:
        if self.body.functions:
            delta.setdefault("function_call", {"arguments": ""})["arguments"] += text
            return
        calls = delta.setdefault("tool_calls", [])
        if not calls or calls[-1]["index"] != number:
            calls.append({"index": number, "function": {"arguments": ""}})
        calls[-1]["function"]["arguments"] += text

    def _message(self, pieces: Sequence[Piece]) -> AssistantMessage:
        calls: list[AnsweredCall] = []
        for piece in pieces:
            if piece.part is AnswerPart.CALL:
                calls.append({"id": _call_id(), "type": "function", "function": {"name": piece.text, "arguments": ""}})
            elif piece.part is AnswerPart.ARGUMENTS:
                calls[-1]["function"]["arguments"] += piece.text
        content = self._echo + joined(pieces, AnswerPart.CONTENT)
        thoughts = joined(pieces, AnswerPart.REASONING)
        message: AssistantMessage = {"role": "assistant", "content": content, "refusal": None}
        if calls and not content:
            message["content"] = None
        if thoughts and self.body.include_reasoning:
            message["reasoning_content"] = message["reasoning"] = thoughts
        if calls and self.body.functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message

    def _finish_word(self, reader: AnswerReader, finished: Finished) -> FinishWord:
        if reader.num_calls == 0 or reader.is_in_call or finished.reason == "length":
            return finished.reason
        return "function_call" if self.body.functions else "tool_calls"

    def _logprobs(self, tokens: Sequence[TokenInfo]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        return chat_logprobs(self.engine, self.body.own_logprobs(tokens), as_ids=self.body.return_tokens_as_token_ids)


def chat_chunk(index: int, delta: ChatDelta) -> ChatChunkChoice:
    """Return choice `index` of a stream's event, with more of its message."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


Chat = TypeVar("Chat", bound=ChatRequest)
_LEAST_SYSTEM = 32  # tokens of a system text that are worth a state of their own


ROUTES = RouteTable()


@ROUTES.post("/v1/chat/completions", "/chat/completions", answer=ChatCompletion, chunk=ChatCompletionChunk)
async def converse(call: Call, body: ChatRequest) -> Answer:
    """Continue a conversation."""
    prepared = await prepare_chat(call, body)
    await note_slot(call, body, prepared.requests)
    prompt = prepared.requests[0].prompt
    read = await work(call, len(prompt), lambda: text_of(call.engine, tuple(prompt))) if body.verbose else ""
    return await ChatDialect(prepared, read).answer()


async def prepare_chat(call: Call, body: Chat) -> Prepared[Chat]:
    """Return the engine requests for a chat's answers.

    Raises InvalidRequestError, also for more tokens or answers than the limits allow.
    """
    engine = call.engine
    starts = await resolve_starts(engine, body)
    template = body.template_of(engine.info.chat_template)
    size = _rendering_size(call, body, template) * len(starts) + CALL_WORK * body.n + body.bias_characters
    settings = call.app[SETTINGS]
    requests, form = await work(call, size, partial(_prepare, engine, settings, body, template, starts))
    return Prepared(call, body, requests, starts[0], form)


@ROUTES.post("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
async def tell_input_tokens(call: Call, chat: ChatRequest) -> InputTokens:
    """The number of tokens that the model would read for a chat, without running it."""
    prepared = await prepare_chat(call, chat)
    return {"object": "response.input_tokens", "input_tokens": len(prepared.requests[0].prompt)}


class AppliedTemplate(TypedDict):
    """The answer with a conversation as the text that the model reads, in `prompt`."""

    prompt: str


@ROUTES.post("/v1/apply-template", "/apply-template")
async def apply_template(call: Call, body: ChatRequest) -> Long[AppliedTemplate]:
    """What the model would read for a chat, without running it."""
    engine = call.engine
    start = (await resolve_starts(engine, body))[0]
    template = body.template_of(engine.info.chat_template)
    size = _rendering_size(call, body, template)
    return Long(size, lambda: {"prompt": render_chat(engine, call.limits, body, template, start).text})


def _rendering_size(call: Call, body: ChatRequest, template: ChatTemplate) -> int:
    """Return an estimate of the work of rendering a conversation, for the argument `size` of `work`.

    A template that is a program may take long even for short texts.
    """
    held = call.lease.num_bytes
    if held > SHORT_WORK:
        return held
    return template.most_characters(body.conversation) + (0 if isinstance(template, WorldTemplate) else SHORT_WORK)


def _prepare(
    engine: EngineLike,
    settings: ServerSettings,
    body: ChatRequest,
    template: ChatTemplate,
    starts: Sequence[WeightedState],
) -> tuple[list[GenerateRequest], AnswerForm]:
    """Return the engine requests for all answers of a chat, and the form that divides answers into parts.

    Raises InvalidRequestError, also for more tokens or answers than the limits allow.
    """
    limits = settings.limits
    prompts = [render_chat(engine, limits, body, template, start) for start in starts]
    pause()
    earlier: list[int] = []  # the tokens of the assistant's earlier messages, which penalties also count
    if body.penalises_occurrence:
        replies = [message.content or "" for message in body.messages if message.role is Role.ASSISTANT]
        earlier = [token for reply in replies for token in engine.tokenize(reply)]
    members = [_call(engine, body, prompt, start, earlier) for prompt, start in zip(prompts, starts, strict=True)]
    num_tokens = sum(len(member.prompt) for member in members) * body.n
    limits.check("max_prompt_tokens", "messages", num_tokens)
    tools = body.choice.callable_tools(body.offered)
    grammar = _tool_grammar(body, template, tools, prompts[0]) if tools else body.answer_grammar
    thinking = _thinking(engine, body, prompts[0], grammar)
    written = template.tool_format if tools else None
    call = replace(
        mix_calls(body, starts, members),
        grammar=grammar,
        thinking=thinking,
        tool_format=written,
        strips=not body.continues,
    )
    calls = body.copies_of([replace(call, **body.scoring(engine, limits, num_tokens))], limits, engine.tokenize)
    if body.top_logprobs not in (None, MAX_LOGPROBS):
        check_range("top_logprobs", body.top_logprobs, 0, engine.info.max_logprobs)
    pause()
    calls[0].check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
    form = AnswerForm(
        prompts[0].thought,
        bracket=prompts[0].ends_in_tag,
        divides_thoughts=(body.reasoning_format or settings.reasoning_format) != "none",
        tools=template.tool_format,
        names=[tool.name for tool in tools],
        must_call=bool(tools) and body.choice.mode == "required",
        strips=not body.continues,
    )
    return calls, form


def render_chat(
    engine: EngineLike, limits: Limits, body: ChatRequest, template: ChatTemplate, start: ResolvedState
) -> ChatPrompt:
    """Render the conversation in `body` by `template`, as a prompt for a sequence that starts from `start`."""
    before, conversation = text_before_chat(engine, start.frozen, template), body.conversation
    limits.check("max_text_bytes", "messages", template.most_characters(conversation))
    prompt = make_chat_prompt(engine, template, conversation, limits.max_text_bytes, before=before)
    limits.check("max_text_bytes", "messages", len(prompt.text.encode()))
    return prompt


def _call(
    engine: EngineLike, body: ChatRequest, prompt: ChatPrompt, start: WeightedState, earlier: Sequence[int]
) -> GenerateRequest:
    """Return the engine request that runs a chat's prompt from `start`, one of the states that the request names.

    The prompt is that of the entry `start` in a mix of states, if it has one, else `prompt`, the conversation's.
    """
    cut = max(len(prompt.tokens) - (body.truncate_prompt_tokens or len(prompt.tokens)), 0)
    call = GenerateRequest(
        prompt=prompt.tokens[cut:],
        initial_state=start.initial_state,
        turn_positions=_after(cut, sorted(prompt.turns.values())),
        checkpoint_positions=_after(cut, _checkpoint_positions(body, prompt.turns)),
        max_tokens=body.max_tokens,
        stop=[text.encode() for text in body.stops(prompt.stop)],
        stop_tokens=(engine.info.end_of_text, *prompt.stop_tokens),
        penalised_prompt=earlier,
        priority=body.priority,
    )
    if start.prompt is None:
        return call
    own = engine.tokenize(start.prompt) or empty_prompt(engine.info.end_of_text, start.initial_state)
    return replace(call, prompt=own, turn_positions=(), checkpoint_positions=())


def _after(cut: int, positions: Sequence[int]) -> Sequence[int]:
    """Return those of the positions in a prompt that are left if its first `cut` tokens are cut off."""
    return [position - cut for position in positions if position >= cut] if cut else positions


def _tool_grammar(body: ChatRequest, template: ChatTemplate, tools: Sequence[Tool], prompt: ChatPrompt) -> Grammar:
    """Return the grammar for an answer that calls some of `tools` or, unless a call is required, is a text."""
    required, otherwise = body.choice.mode == "required", body.answer_schema
    return tool_grammar(
        template.tool_format,
        tools,
        prompt,
        required=required,
        parallel=body.parallel_tool_calls and not body.functions,
        otherwise=None if required else otherwise,  # an answer of calls alone has no content that would follow it
    )


def _thinking(engine: EngineLike, body: ChatRequest, prompt: ChatPrompt, grammar: Grammar | None) -> Thinking | None:
    """Return how an answer's thoughts must be treated: how they end, and how many tokens they may take.

    Return None if the answer begins without thoughts, or if neither a grammar nor a budget depends on their end.
    """
    if not prompt.thought or (grammar is None and body.thinking_budget_tokens is None):
        return None
    return Thinking(THINK_CLOSES.encode(), engine.tokenize(f"\n{THINK_CLOSES}\n"), body.thinking_budget_tokens)


def _checkpoint_positions(body: ChatRequest, turns: Mapping[int, int]) -> list[int]:
    """Return the prompt positions at which to save states: those marked by the client, and a long system text's end.

    Other conversations may begin with the same system text.
    """
    marked = [turns[count] for count, message in enumerate(body.messages, 1) if message.cache and count in turns]
    system = turns.get(count_leading_system(message.role for message in body.messages), 0)
    return [*marked, *([system] if system >= _LEAST_SYSTEM else [])]
