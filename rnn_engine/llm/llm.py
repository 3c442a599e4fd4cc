"""`LLM`, a loaded model for scripts and notebooks: the methods of `AsyncLLM` without `await`.

The model's event loop runs on a thread of its own, so an `LLM` also works in programs that run a loop of their own,
such as notebooks, and from several threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, overload

from rnn_engine.chat_template import Tool
from rnn_engine.demo import DEMO
from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, check_process
from rnn_engine.llm.asynchronous import (
    DEFAULT_CACHE,
    DEFAULT_EMBEDDING,
    DEFAULT_PARAMS,
    AsyncLLM,
    OnDone,
    Schema,
    ignore_completion,
)
from rnn_engine.llm.collection import Collection
from rnn_engine.llm.progress import progress_bar
from rnn_engine.llm.prompts import Messages, Prompt, StateChoice
from rnn_engine.llm.results import Completion, GenerationInterrupted, RankedChoice, RankedDocument, SamplingParams
from rnn_engine.llm.state import State
from rnn_engine.model import LoraChoice
from rnn_engine.operations.chat_prompt import ToolMode
from rnn_engine.operations.embedding import EmbeddingSettings
from rnn_engine.operations.scoring import ChoiceScore, Continuation
from rnn_engine.sampling.params import MixKind
from rnn_engine.types import F32, EmbeddingTask
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.files.exchange import StateFiles

T = TypeVar("T")


class _LoopThread:
    """An event loop on a daemon thread, which other threads have run coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._stopping = False
        self._lock = threading.Lock()  # held while work is handed over, so that none comes after the last
        self._thread = threading.Thread(target=self._serve, name="rnn-engine LLM", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop, and wait for its result. On Ctrl-C, cancel it.

        Raises EngineClosedError if the loop is stopped, or if it belongs to the process from which this was forked.
        """
        try:
            check_process(self._process, "LLM")
            self.check_caller()
            with self._lock:
                if self._stopping:
                    raise EngineClosedError("this LLM was closed")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()  # it was never begun, which would be warned of
            raise
        try:
            return future.result()
        except CancelledError:
            raise EngineClosedError("this LLM was closed") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def check_caller(self) -> None:
        """Raise RuntimeError on the loop's own thread, which must not wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("`on_done` must not call the LLM that calls it; note the result, and go on outside")

    def stop(self, llm: AsyncLLM | None = None) -> None:
        """Close `llm`, end what still runs with EngineClosedError, stop the loop and wait for its thread.

        Does nothing in a forked process, or if that was done.
        """
        if self._process != os.getpid():
            return
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            asyncio.run_coroutine_threadsafe(self._finish(llm), self._loop)
        if threading.current_thread() is not self._thread:  # it may be if an LLM is deleted by the garbage collector
            self._thread.join()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _finish(self, llm: AsyncLLM | None) -> None:
        try:
            if llm is not None:
                # At the interpreter's end its helper threads are gone, which the last, unimportant part needs.
                with suppress(RuntimeError):
                    await llm.close()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()
            self._loop.call_soon(self._loop.stop)  # after the results have reached those who wait for them


class LLM:
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
        num_slots: int = 8,
        tokenizer: str = "auto",
        chat_template: str = "auto",
        loras: Sequence[LoraChoice] = (),
        reranker: str | Path | None = None,
        cache: CacheConfig | None = DEFAULT_CACHE,
    ) -> None:
        """Load a model, with a progress bar on a terminal; see `AsyncLLM.load` for the arguments and errors."""
        self._thread = _LoopThread()
        try:
            with progress_bar("opening the model") as report:
                self._llm = self._thread.run(
                    AsyncLLM.load(
                        model,
                        device=device,
                        weights=weights,
                        num_slots=num_slots,
                        tokenizer=tokenizer,
                        chat_template=chat_template,
                        loras=loras,
                        reranker=reranker,
                        cache=cache,
                        progress=report,
                    )
                )
        except BaseException:
            self._thread.stop()
            raise
        self._closer = weakref.finalize(self, self._thread.stop, self._llm)

    @property
    def engine(self) -> Engine:
        """The engine, for its facts and counters; its coroutines belong to the LLM's own event loop."""
        return self._llm.engine

    @property
    def state_files(self) -> StateFiles:
        """The reader and writer of this model's state files, for `State(arrays, files)`."""
        return self._llm.state_files

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self,
        prompts: Prompt,
        params: SamplingParams = ...,
        *,
        state: StateChoice | None = ...,
        mix: MixKind = ...,
        keep_state: bool = ...,
        progress: bool = ...,
        on_done: OnDone = ...,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = ...,
        *,
        state: StateChoice | None = ...,
        mix: MixKind = ...,
        keep_state: bool = ...,
        progress: bool = ...,
        on_done: OnDone = ...,
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = ...,
        *,
        state: StateChoice | None = ...,
        mix: MixKind = ...,
        keep_state: bool = ...,
        progress: bool = ...,
        on_done: OnDone = ...,
    ) -> Completion | list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = DEFAULT_PARAMS,
        *,
        state: StateChoice | None = None,
        mix: MixKind = "log",
        keep_state: bool = False,
        progress: bool = True,
        on_done: OnDone = ignore_completion,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of a list of prompts, and return what was generated, in their order.

        See `AsyncLLM.generate`. For a list, a progress bar is shown on a terminal and in a notebook. `on_done` is
        called on another thread. On Ctrl-C, raises `GenerationInterrupted` with what is done.
        """
        with _Done(on_done) as done:
            return self._thread.run(
                self._llm.generate(
                    prompts, params, state=state, mix=mix, keep_state=keep_state, progress=progress, on_done=done.add
                )
            )

    @overload
    def chat(
        self,
        messages: str | Messages,
        params: SamplingParams = ...,
        *,
        tools: Sequence[Tool | Mapping[str, object]] = ...,
        tool_choice: ToolMode = ...,
        thinking: bool | None = ...,
        state: StateChoice | None = ...,
        mix: MixKind = ...,
        keep_state: bool = ...,
        progress: bool = ...,
        on_done: OnDone = ...,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] = ...,
        *,
        tools: Sequence[Tool | Mapping[str, object]] = ...,
        tool_choice: ToolMode = ...,
        thinking: bool | None = ...,
        state: StateChoice | None = ...,
        mix: MixKind = ...,
        keep_state: bool = ...,
        progress: bool = ...,
        on_done: OnDone = ...,
    ) -> list[Completion]: ...

    @overload
    def chat(
        self,
        messages: str | Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] = ...,
        *,
        tools: Sequence[Tool | Mapping[str, object]] = ...,
        tool_choice: ToolMode = ...,
        thinking: bool | None = ...,
        state: StateChoice | None = ...,
        mix: MixKind = ...,
        keep_state: bool = ...,
        progress: bool = ...,
        on_done: OnDone = ...,
    ) -> Completion | list[Completion]: ...

    def chat(
        self,
        messages: str | Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] = DEFAULT_PARAMS,
        *,
        tools: Sequence[Tool | Mapping[str, object]] = (),
        tool_choice: ToolMode = "auto",
        thinking: bool | None = None,
        state: StateChoice | None = None,
        mix: MixKind = "log",
        keep_state: bool = False,
        progress: bool = True,
        on_done: OnDone = ignore_completion,
    ) -> Completion | list[Completion]:
        """Answer a conversation, or each of a list of conversations, by the model's own chat template.

        See `AsyncLLM.chat`, and `generate` for what is shown and raised.
        """
        with _Done(on_done) as done:
            return self._thread.run(
                self._llm.chat(
                    messages,
                    params,
                    tools=tools,
                    tool_choice=tool_choice,
                    thinking=thinking,
                    state=state,
                    mix=mix,
                    keep_state=keep_state,
                    progress=progress,
                    on_done=done.add,
                )
            )

    def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        state: StateChoice | None = None,
        mix: MixKind = "log",
    ) -> Iterator[str]:
        """Yield the text that continues a prompt, or the answer to the messages of a chat; see `AsyncLLM.stream`."""
        pieces = self._llm.stream(prompt, params, state=state, mix=mix)
        try:
            while (piece := self._thread.run(_next(pieces))) is not None:
                yield piece
        finally:
            with suppress(EngineClosedError):
                self._thread.run(pieces.aclose())

    @overload
    def json(
        self,
        prompt: Prompt | Messages,
        schema: type[T],
        params: SamplingParams = ...,
        *,
        state: StateChoice | None = ...,
    ) -> T: ...

    @overload
    def json(
        self,
        prompt: Prompt | Messages,
        schema: Schema,
        params: SamplingParams = ...,
        *,
        state: StateChoice | None = ...,
    ) -> object: ...

    def json(
        self,
        prompt: Prompt | Messages,
        schema: type[T] | Schema,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        state: StateChoice | None = None,
    ) -> T | object:
        """Return JSON that fits a schema, parsed, as the continuation of a prompt or answer of a chat.

        See `AsyncLLM.json`.
        """
        return self._thread.run(self._llm.json(prompt, schema, params, state=state))

    def map(
        self,
        source: str | Path,
        target: str | Path,
        prompt: str,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        chat: bool = False,
        field: str = "completion",
        state: StateChoice | None = None,
        progress: bool = True,
    ) -> int:
        """Complete a prompt for each line of a file of JSON objects, and write the objects with their completions.

        After an interruption, the next call continues with the first line that is missing. See `AsyncLLM.map`.
        """
        return self._thread.run(
            self._llm.map(source, target, prompt, params, chat=chat, field=field, state=state, progress=progress)
        )

    def rank(
        self,
        context: Prompt,
        choices: Sequence[Prompt],
        *,
        calibrate: bool = False,
        state: State | None = None,
    ) -> list[RankedChoice]:
        """Return the choices in the order of their probability as continuations of `context`; see `AsyncLLM.rank`."""
        return self._thread.run(self._llm.rank(context, choices, calibrate=calibrate, state=state))

    def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[RankedDocument]:
        """Return the documents in the order of how well they answer `query`; see `AsyncLLM.rerank`."""
        return self._thread.run(self._llm.rerank(query, documents, top_n=top_n))

    def logprobs(self, texts: Sequence[Prompt], *, state: State | None = None) -> list[ChoiceScore]:
        """Return the log-probability of each text and of each of its tokens; see `AsyncLLM.logprobs`."""
        return self._thread.run(self._llm.logprobs(texts, state=state))

    def score(
        self, pairs: Sequence[tuple[Prompt, Prompt]], *, alternatives: int = 0, state: State | None = None
    ) -> list[Continuation]:
        """Return the log-probability of each pair's second text after its first; see `AsyncLLM.score`."""
        return self._thread.run(self._llm.score(pairs, alternatives=alternatives, state=state))

    def embed(
        self,
        texts: Sequence[Prompt],
        settings: EmbeddingSettings = DEFAULT_EMBEDDING,
        *,
        task: EmbeddingTask | None = None,
        state: State | None = None,
    ) -> F32:
        """Return a vector for each text: [texts, dimensions] f32; see `AsyncLLM.embed`."""
        return self._thread.run(self._llm.embed(texts, settings, task=task, state=state))

    def collection(self, name: str = "documents", folder: str | Path | None = None) -> Collection:
        """Return the collection of documents of this name, which is made if there is none.

        It is kept in `folder` over restarts, or else in memory; see `AsyncLLM.collection`.
        """
        return Collection(self._thread.run(self._llm.collection(name, folder)), self._thread.run)

    def state(self, prompt: Prompt | Messages = "", *, state: State | None = None) -> State:
        """Return the state after a text, token ids or the messages of a chat, which start from `state`."""
        return self._thread.run(self._llm.state(prompt, state=state))

    def load_state(self, path: str | Path, *, any_model: bool = False) -> State:
        """Read a state file in any supported format, such as a tuned initial state. Raises StateError.

        A file that says that its state was made for another model is refused unless `any_model` is true.
        """
        return self._thread.run(self._llm.load_state(path, any_model=any_model))

    def tokenize(self, text: str) -> list[int]:
        return self._llm.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; a part of a character becomes U+FFFD."""
        return self._llm.detokenize(tokens)

    def close(self) -> None:
        """End what runs with EngineClosedError, free the device and close collections. Idempotent."""
        self._thread.check_caller()
        self._closer()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an LLM can't be copied or pickled, since it holds a device; load another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Done:
    """Collects completions. If Ctrl-C interrupts its `with` block, they are in the exception that is raised."""

    def __init__(self, on_done: OnDone) -> None:
        self._on_done = on_done
        self._completions: dict[int, Completion] = {}

    def add(self, index: int, completion: Completion) -> None:
        self._completions[index] = completion
        self._on_done(index, completion)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise GenerationInterrupted(self._completions) from None


async def _next(pieces: AsyncGenerator[str, None]) -> str | None:
    """Return the next of `pieces`, or None after the last one."""
    return await anext(pieces, None)
