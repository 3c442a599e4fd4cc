"""Masks for the tokens of requests that have a grammar, or thoughts before their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rnn_engine.errors import EngineClosedError, InvalidRequestError, StepError
from rnn_engine.grammar import GrammarCompiler, GrammarError, Vocabulary, start_after
from rnn_engine.requests import GenerateRequest
from rnn_engine.sampling.thinking import ThinkingMask
from rnn_engine.tokenizer import Tokenizer


class RequestMasks:
    """Compiles the grammars of requests, on threads of its own. For one event loop."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, seconds: float, note_seconds: Callable[[float], None]
    ) -> None:
        """Compiling a grammar may take `seconds` of the processor's; `note_seconds` is told how many each took."""
        self._token_bytes = tokenizer.decode_bytes
        self._vocab_size = vocab_size
        vocabulary = partial(Vocabulary.of, tokenizer, vocab_size)
        self._grammars = GrammarCompiler(vocabulary, seconds, note_seconds=note_seconds)

    async def make(self, request: GenerateRequest) -> GenerateRequest:
        """Return `request` with a mask in place of its grammar and its thoughts.

        Raises InvalidRequestError if the grammar is wrong, UnavailableError if it could not be compiled for another
        reason, EngineClosedError if this was closed.
        """
        return self._with_thinking(await self._with_mask(request))

    def close(self) -> None:
        """Stop compiling. Blocks until the grammar that is being compiled is done."""
        self._grammars.close()

    async def _with_mask(self, request: GenerateRequest) -> GenerateRequest:
        if (grammar := request.grammar) is None:
            return request
        future = self._grammars.compile(grammar, request.cache_scope)  # else one could guess what others use
        try:
            compiled = await asyncio.shield(asyncio.wrap_future(future))  # others may wait for it, too
        except GrammarError as error:
            raise grammar.refused(str(error)) from error
        except asyncio.CancelledError:
            if future.cancelled():
                raise EngineClosedError("the engine has stopped") from None
            raise
        if request.grammar_prefix == 0:
            return replace(request, grammar=None, token_mask=compiled.start)
        start = partial(start_after, compiled, tuple(request.prompt[-request.grammar_prefix :]))
        try:
            begun = await asyncio.to_thread(start)
        except StepError as error:
            allowed = f"tokens with which a text of the grammar begins: {error}"
            raise InvalidRequestError("grammar_prefix_tokens", request.grammar_prefix, allowed) from error
        return replace(request, grammar=None, token_mask=begun.copy)

    def _with_thinking(self, request: GenerateRequest) -> GenerateRequest:
        """Return `request` with a mask that lets its thoughts come before what its own mask holds."""
        if request.thinking is None:
            return request
        thoughts, answer, ends = request.thinking, request.token_mask, request.stop_tokens
        mask = partial(ThinkingMask, thoughts, self._token_bytes, self._vocab_size, answer, ends)
        return replace(request, thinking=None, token_mask=mask)
