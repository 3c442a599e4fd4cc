"""OpenAI's text completions: continue texts or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from rnn_engine.errors import check_range, check_token_ids
from rnn_engine.interface import EngineLike
from rnn_engine.requests import Finished, GenerateRequest, TextDelta, TokenInfo, empty_prompt
from rnn_engine_server.apis.common.answering import Outcome, Prepared
from rnn_engine_server.apis.common.generation import AnyPrompt, prompt_logprobs, text_of, tokens_of
from rnn_engine_server.apis.common.states import WeightedState, mix_calls, resolve_starts
from rnn_engine_server.apis.openai.dialect import ChoicesDialect, CompletionTokens
from rnn_engine_server.apis.openai.schemas import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from rnn_engine_server.core.call import CALL_WORK, Call, work
from rnn_engine_server.core.handlers import Answer, RouteTable
from rnn_engine_server.core.settings import Limits


class CompletionDialect(ChoicesDialect[CompletionRequest]):
    """Makes OpenAI's choices of text completions. The choices of prompt p begin with `echoes[p]`."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, prepared: Prepared[CompletionRequest], echoes: Sequence[str]) -> None:
        super().__init__(prepared)
        as_ids = self.body.return_tokens_as_token_ids
        self._echoes = echoes
        self._tokens = [CompletionTokens(self.engine, as_ids=as_ids) for _ in prepared.requests]

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> CompletionChoice | None:
        if not (self.body.echo or self.body.return_token_ids):
            return None
        choice = self._choice(index, self._echo(index), prompt)
        return self._with_prompt_ids(choice, index)

    def delta(self, index: int, delta: TextDelta) -> CompletionChoice | str | None:
        if self.body.logprobs is None and not self.body.return_token_ids:
            return delta.text or None
        choice = self._choice(index, delta.text, delta.tokens)
        return self._with_ids(choice, delta.tokens)

    def text_chunk(self, index: int, text: str) -> CompletionChoice:
        return self._choice(index, text, ())

    def closing(self, index: int, finished: Finished) -> CompletionChoice:
        choice = self._choice(index, "", _stop_token(finished))
        return {**choice, "finish_reason": finished.reason, "seed": finished.seed}

    def choice(self, index: int, outcome: Outcome) -> CompletionChoice:
        finished = outcome.end
        tokens = [*(outcome.prompt if self.body.echo else ()), *outcome.tokens, *_stop_token(finished)]
        choice = self._choice(index, self._echo(index) + outcome.text, tokens)
        choice = self._with_ids(self._with_prompt_ids(choice, index), outcome.tokens)
        if self.body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self.engine, outcome.prompt, self.body.prompt_logprobs)
        return {**choice, "finish_reason": finished.reason, "seed": finished.seed}

    def _echo(self, index: int) -> str:
        return self._echoes[index // self.body.copies]

    def _choice(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> CompletionChoice:
        return {"index": index, "text": text, "logprobs": self._logprobs(index, tokens), "finish_reason": None}

    def _logprobs(self, index: int, tokens: Sequence[TokenInfo]) -> CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        return self._tokens[index].describe(self.body.own_logprobs(tokens))

    def _with_prompt_ids(self, choice: CompletionChoice, index: int) -> CompletionChoice:
        if self.body.return_token_ids:
            choice["prompt_token_ids"] = list(self.prepared.requests[index].prompt)
        return choice

    def _with_ids(self, choice: CompletionChoice, tokens: Sequence[TokenInfo]) -> CompletionChoice:
        if self.body.return_token_ids:
            choice["token_ids"] = [info.token for info in tokens]
        return choice


def _stop_token(finished: Finished) -> tuple[TokenInfo, ...]:
    """Return a tuple with the stop token that ended the answer, or an empty tuple if none did.

    It is listed with a log-probability, but is no part of the text.
    """
    return () if finished.stop_token is None else (finished.stop_token,)


Completed = TypeVar("Completed", bound=CompletionRequest)

ROUTES = RouteTable()


@ROUTES.post("/v1/completions", answer=Completion, chunk=Completion)
async def completions(call: Call, body: CompletionRequest) -> Answer:
    """Continue texts or tokens."""
    return await complete(call, body, CompletionDialect)


async def complete(call: Call, body: CompletionRequest, dialect: type[CompletionDialect]) -> Answer:
    """Generate continuations of the prompts in `body`, and send them as the answer."""
    prepared = await prepare_completions(call, body)
    size = sum(map(len, body.prompt)) if body.echo else 0
    echoes = await work(call, size, partial(_echoes, call.engine, body))
    return await dialect(prepared, echoes).answer()


async def prepare_completions(call: Call, body: Completed) -> Prepared[Completed]:
    """Return the engine requests for all answers to a completion request.

    Raises InvalidRequestError, also for more tokens or answers than the limits allow.
    """
    starts = await resolve_starts(call.engine, body)
    size = sum(map(len, body.prompt)) * len(starts) + CALL_WORK * len(body.prompt) * body.copies + body.bias_characters
    requests = await work(call, size, partial(_calls, call.engine, call.limits, body, starts))
    return Prepared(call, body, requests, starts[0])


def _echoes(engine: EngineLike, body: CompletionRequest) -> list[str]:
    """Return for each prompt the text to put before its answers: the prompt itself with `echo`, else an empty text."""
    return [text_of(engine, prompt) if body.echo else "" for prompt in body.prompt]


def _calls(
    engine: EngineLike, limits: Limits, body: CompletionRequest, starts: Sequence[WeightedState]
) -> list[GenerateRequest]:
    """Return the engine requests for all answers to a completion request.

    Raises InvalidRequestError, also for more tokens or answers than `limits` allow.
    """
    members = [[_call(engine, body, prompt, start) for start in starts] for prompt in body.prompt]
    num_tokens = sum(len(call.prompt) for calls in members for call in calls) * body.copies
    limits.check("max_prompt_tokens", "prompt", num_tokens)
    scoring = body.scoring(engine, limits, num_tokens)
    mixes = [replace(mix_calls(body, starts, calls), **scoring) for calls in members]
    calls = body.copies_of(mixes, limits, engine.tokenize)
    for call in calls[:: body.copies]:  # the copies of a prompt are alike
        call.check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
    return calls


def _call(engine: EngineLike, body: CompletionRequest, prompt: AnyPrompt, start: WeightedState) -> GenerateRequest:
    """Return the engine request that runs a prompt from `start`, one of the states that the request names.

    The prompt is that of `start` if it has one, else `prompt`. Only its last `body.truncate_prompt_tokens` are run; the
    marks count the tokens before them, too.
    """
    tokens = _tokens(engine, prompt if start.prompt is None else start.prompt, start)
    marks = body.marks if start.prompt is None else []
    for position in marks:
        check_range("marks position", position, 0, len(tokens))
    cut = 0 if body.truncate_prompt_tokens is None else max(len(tokens) - body.truncate_prompt_tokens, 0)
    if cut:
        check_token_ids("prompt token", tokens, engine.info.shape.vocab_size)  # those that are cut off may be echoed
    return GenerateRequest(
        prompt=tokens[cut:] if cut else tokens,  # a copy of all would be checked anew
        initial_state=start.initial_state,
        checkpoint_positions=[position - cut for position in marks if position >= cut],
        max_tokens=body.max_tokens,
        stop=body.stop_bytes,
        stop_tokens=(engine.info.end_of_text,),
        grammar=body.answer_grammar,
        grammar_prefix=body.grammar_prefix_tokens,
        priority=body.priority,
    )


def _tokens(engine: EngineLike, prompt: AnyPrompt, start: WeightedState) -> Sequence[int]:
    """Return the tokens of a prompt. An empty text gets the tokens that `empty_prompt` returns.

    An empty list of tokens stays empty and is rejected later.
    """
    tokens = tokens_of(engine, prompt)
    return (tokens or empty_prompt(engine.info.end_of_text, start.initial_state)) if isinstance(prompt, str) else tokens
