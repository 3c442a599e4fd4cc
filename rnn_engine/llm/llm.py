"""`LLM`, a loaded model for scripts and notebooks: the methods of `AsyncLLM` without `await`.

The model's event loop runs on a thread of its own, so an `LLM` also works in programs that run a loop of their own,
such as notebooks, and from several threads.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import NoReturn, Self, TypeVar, cast

from rnn_engine.demo import DEMO
from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError
from rnn_engine.llm.asynchronous import DEFAULT_CACHE, DEFAULT_PARAMS, AsyncLLM
from rnn_engine.llm.blocking import Blocking, LoopThread, blocking
from rnn_engine.llm.collection import Collection
from rnn_engine.llm.progress import ignore, progress_bar
from rnn_engine.llm.prompts import Messages, OnDone, Prompt, StateChoice
from rnn_engine.llm.results import Completion, GenerationInterrupted, SamplingParams
from rnn_engine.model import LoraChoice
from rnn_engine.sampling.params import MixKind
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.files.exchange import StateFiles

M = TypeVar("M")


def _interruptible(method: M) -> M:
    """Return a method that on Ctrl-C raises `GenerationInterrupted` with the completions that are done."""
    generate = cast(Callable[..., object], method)

    @wraps(generate)
    def call(self: LLM, /, *args: object, on_done: OnDone = ignore, **kwargs: object) -> object:
        done: dict[int, Completion] = {}

        def add(index: int, completion: Completion) -> None:
            done[index] = completion
            on_done(index, completion)

        try:
            return generate(self, *args, on_done=add, **kwargs)
        except KeyboardInterrupt:
            raise GenerationInterrupted(done) from None

    return cast(M, call)


class LLM(Blocking[AsyncLLM]):
    """A loaded RWKV model that completes, chats, scores and embeds, many texts at a time.

        from rnn_engine import LLM

        llm = LLM()
        print(llm.generate("User: What is the capital of France?\\n\\nAssistant:"))

    `LLM("model.pth")` loads a file, `LLM("rwkv7-0.1b")` a model that was pulled. It is closed by `close`, at the end of
    a `with` block, or with the program. Each method blocks until its result is there, may be called from any thread,
    and shares the steps of the model with others that run. After `close` and in forked processes, methods raise
    EngineClosedError. Ctrl-C ends what the interrupted call was running.
    """

    def __init__(
        self,
        model: str | Path = DEMO,
        *,
        device: str = "auto",
        weights: str | None = None,
        device_memory: int | None = None,
        num_slots: int = 8,
        tokenizer: str = "auto",
        chat_template: str = "auto",
        loras: Sequence[LoraChoice] = (),
        max_loras: int = 0,
        max_lora_rank: int = 16,
        reranker: str | Path | None = None,
        cache: CacheConfig | None = DEFAULT_CACHE,
    ) -> None:
        """Load a model, with a progress bar on a terminal; see `AsyncLLM.load` for the arguments and errors."""
        self._thread = LoopThread()
        try:
            with progress_bar("opening the model") as report:
                llm = self._thread.run(
                    AsyncLLM.load(
                        model,
                        device=device,
                        weights=weights,
                        device_memory=device_memory,
                        num_slots=num_slots,
                        tokenizer=tokenizer,
                        chat_template=chat_template,
                        loras=loras,
                        max_loras=max_loras,
                        max_lora_rank=max_lora_rank,
                        reranker=reranker,
                        cache=cache,
                        progress=report,
                    )
                )
        except BaseException:
            self._thread.stop()
            raise
        super().__init__(llm, self._thread.run)
        llm.shows_progress = True
        self._closer = weakref.finalize(self, self._thread.stop, llm)

    @property
    def engine(self) -> Engine:
        """The engine, for its facts and counters; its coroutines belong to the LLM's own event loop."""
        return self._twin.engine

    @property
    def state_files(self) -> StateFiles:
        """The reader and writer of this model's state files, for `State(arrays, files)`."""
        return self._twin.state_files

    _generate = blocking(AsyncLLM.generate)  # names of their own, for mypy keeps the overloads of names alone
    _chat = blocking(AsyncLLM.chat)
    generate = _interruptible(_generate)
    chat = _interruptible(_chat)
    json = blocking(AsyncLLM.json)
    rank = blocking(AsyncLLM.rank)
    rerank = blocking(AsyncLLM.rerank)
    logprobs = blocking(AsyncLLM.logprobs)
    score = blocking(AsyncLLM.score)
    embed = blocking(AsyncLLM.embed)
    state = blocking(AsyncLLM.state)
    load_state = blocking(AsyncLLM.load_state)

    def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        state: StateChoice | None = None,
        mix: MixKind = "log",
    ) -> Iterator[str]:
        """Yield the text that continues a prompt, or the answer to the messages of a chat; see `AsyncLLM.stream`."""
        pieces = self._twin.stream(prompt, params, state=state, mix=mix)
        try:
            while (piece := self._run(_next(pieces))) is not None:
                yield piece
        finally:
            with suppress(EngineClosedError):
                self._run(pieces.aclose())

    def collection(self, name: str = "documents", folder: str | Path | None = None) -> Collection:
        """Return the collection of documents of this name, which is made if there is none.

        It is kept in `folder` over restarts, or else in memory; see `AsyncLLM.collection`.
        """
        return Collection(self._run(self._twin.collection(name, folder)), self._run)

    def tokenize(self, text: str) -> list[int]:
        return self._twin.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; a part of a character becomes U+FFFD."""
        return self._twin.detokenize(tokens)

    def close(self) -> None:
        """End what runs with EngineClosedError, free the device and close collections. Idempotent."""
        self._thread.check_caller()
        self._closer()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an LLM can't be copied or pickled, since it holds a device; load another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _next(pieces: AsyncGenerator[str, None]) -> str | None:
    """Return the next of `pieces`, or None after the last one."""
    return await anext(pieces, None)
