"""`AsyncLLM`, a loaded model for programs that use asyncio. `LLM` has the same methods without `await`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar, Unpack, overload

import numpy as np

from rnn_engine.chat_template import Conversation, Tool
from rnn_engine.chat_template.answer import AnswerPart, AnswerReader, joined
from rnn_engine.demo import DEMO
from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidRequestError, NotFoundError, StepError, check_whole
from rnn_engine.forward import Progress
from rnn_engine.grammar import Grammar, json_grammar
from rnn_engine.hub import locate_model
from rnn_engine.llm.collection import AsyncCollection
from rnn_engine.llm.progress import completion_bar, ignore
from rnn_engine.llm.prompts import (
    Asked,
    CallOptions,
    ChatCallOptions,
    ChatOptions,
    Messages,
    OnDone,
    Params,
    Prompt,
    Schema,
    Start,
    StateChoice,
    answer,
    complete,
    continuation,
    is_conversation,
    is_messages,
    is_prompt,
    params_of,
    parse_messages,
    prompt_tokens,
    schema_of,
    tokens_of_each,
    tokens_of_pairs,
)
from rnn_engine.llm.results import Completion, RankedChoice, RankedDocument, SamplingParams
from rnn_engine.llm.state import State
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import LoraChoice
from rnn_engine.operations.chat_prompt import ToolMode, prompt_after
from rnn_engine.operations.collections import create_collection
from rnn_engine.operations.embedding import EmbeddingSettings, embed
from rnn_engine.operations.naming import run_tokens
from rnn_engine.operations.relevance import method, relevance_prompts, score_relevance
from rnn_engine.operations.scoring import ChoiceScore, Continuation, probabilities, score_choices, score_pairs
from rnn_engine.requests import TextDelta
from rnn_engine.sampling.params import MixKind
from rnn_engine.types import F32, EmbeddingTask, InitialState
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.documents import DocumentStore
from rnn_engine_states.files.exchange import StateFiles

T = TypeVar("T")

_MAX_QUEUED = 1 << 20  # callers of this process may wait as long as they like
_OWNER = ""  # of all collections: a process has no API keys
_AHEAD = 2  # requests in the engine for each slot, so that a slot that becomes free is used at once
DEFAULT_PARAMS = SamplingParams()
DEFAULT_CACHE = CacheConfig()
DEFAULT_EMBEDDING = EmbeddingSettings()


class AsyncLLM:
    """A loaded RWKV model that completes, chats, scores and embeds, many texts at a time.

        async with await AsyncLLM.load() as llm:
            print(await llm.generate("User: What is the capital of France?\\n\\nAssistant:"))

    All methods are for the event loop on which it was loaded, and may be called at the same time; they share the steps
    of the model. `engine` offers everything else, such as named states and the cache.
    """

    def __init__(self, engine: Engine) -> None:
        """Use a loaded engine, which `close` closes."""
        self.engine = engine
        self.shows_progress = False  # in calls whose `progress` is None; an `LLM` sets it
        self._stores: dict[Path | None, DocumentStore] = {}  # of collections, by folder; None: in memory
        self._opening = asyncio.Lock()  # so that each is opened once

    @classmethod
    async def load(
        cls,
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
        progress: Progress = ignore,
    ) -> Self:
        """Load a model: a file, a Hugging Face folder, the name of a model that was pulled, or the demo model.

        `device` is auto, an index, a part of a name, or cpu. `weights` is the format of the matrices, such as f16,
        int8, int4 or auto; None keeps that of a quantised file, and is f16 for others. `device_memory` is that of the
        device in bytes, if it can't be found out. `num_slots` texts run at a time. `loras` are merged into the weights;
        `max_loras` others, up to the rank `max_lora_rank`, can run side by side as states. `reranker` names a reranker
        for an embedding model in the same way. `cache` says how many states of prompts are kept; None keeps none.
        `progress` is called on another thread.

        Raises ModelError, TokenizerError, DeviceError or InvalidRequestError.
        """
        settings = LoadSettings(
            device=device,
            tokenizer=tokenizer,
            chat_template=chat_template,
            weights=weights,
            device_memory=device_memory,
            loras=loras,
            max_loras=max_loras,
            max_lora_rank=max_lora_rank,
            reranker=None if reranker is None else locate_model(reranker),
        )
        engine = await Engine.load(
            model, settings, num_slots=num_slots, max_queued=_MAX_QUEUED, cache=cache, progress=progress
        )
        return cls(engine)

    @property
    def state_files(self) -> StateFiles:
        """The reader and writer of this model's state files, for `State(arrays, files)`."""
        return self.engine.state_files

    @overload
    async def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self, prompts: Prompt, params: SamplingParams = ..., **options: Unpack[CallOptions]
    ) -> Completion: ...

    @overload
    async def generate(
        self, prompts: Sequence[Prompt], params: Params = ..., **options: Unpack[CallOptions]
    ) -> list[Completion]: ...

    @overload
    async def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = ..., **options: Unpack[CallOptions]
    ) -> Completion | list[Completion]: ...

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = DEFAULT_PARAMS,
        *,
        state: StateChoice | None = None,
        mix: MixKind = "log",
        keep_state: bool = False,
        progress: bool | None = None,
        on_done: OnDone = ignore,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of a list of prompts, and return what was generated, in their order.

        A prompt is a text or a list of token ids. `params` may be a list with one for each prompt. Texts start from
        `state`: a `State`, or several with weights, whose predictions are mixed as `mix` says. With `keep_state`, each
        completion has the state after its text, from which another call can go on. `progress` shows a bar on a terminal
        and in a notebook, as an `LLM` does for a list unless it is false. `on_done` is called for each completion, with
        its index; by an `LLM` on another thread.

        Raises InvalidRequestError before anything runs, and StepError if the model's logits are not finite. On Ctrl-C
        an `LLM` raises `GenerationInterrupted` with the completions that are done.
        """
        start = Start.of(self.engine, state, mix)
        if is_prompt(prompts):
            named = [("prompt", prompts)]
        else:
            named = [(f"prompts.{number}", prompt) for number, prompt in enumerate(prompts)]

        def ask() -> list[Asked]:
            return [
                continuation(self.engine, prompt, each, start, field=field)
                for (field, prompt), each in zip(named, params_of(params, len(named)), strict=True)
            ]

        done = await self._complete_all(ask, start, keep_state=keep_state, progress=progress, on_done=on_done)
        return done[0] if is_prompt(prompts) else done

    @overload
    async def chat(
        self, messages: str | Messages, params: SamplingParams = ..., **options: Unpack[ChatCallOptions]
    ) -> Completion: ...

    @overload
    async def chat(
        self, messages: Sequence[Messages], params: Params = ..., **options: Unpack[ChatCallOptions]
    ) -> list[Completion]: ...

    @overload
    async def chat(
        self, messages: str | Messages | Sequence[Messages], params: Params = ..., **options: Unpack[ChatCallOptions]
    ) -> Completion | list[Completion]: ...

    async def chat(
        self,
        messages: str | Messages | Sequence[Messages],
        params: Params = DEFAULT_PARAMS,
        *,
        tools: Sequence[Tool | Mapping[str, object]] = (),
        tool_choice: ToolMode = "auto",
        thinking: bool | None = None,
        state: StateChoice | None = None,
        mix: MixKind = "log",
        keep_state: bool = False,
        progress: bool | None = None,
        on_done: OnDone = ignore,
    ) -> Completion | list[Completion]:
        """Answer a conversation, or each of a list of conversations, by the model's own chat template.

        A conversation is a text of the user's, or a list of messages. The answer's thoughts and its calls of `tools`
        are separate from its text. The other arguments, and errors, are those of `generate`.
        """
        start, options = Start.of(self.engine, state, mix), ChatOptions(tools, tool_choice, thinking)
        if is_conversation(messages):
            named = [("messages", messages)]
        else:
            named = [(f"messages.{number}", conversation) for number, conversation in enumerate(messages)]

        def ask() -> list[Asked]:
            return [
                answer(self.engine, conversation, each, start, options, field=field)
                for (field, conversation), each in zip(named, params_of(params, len(named)), strict=True)
            ]

        done = await self._complete_all(ask, start, keep_state=keep_state, progress=progress, on_done=on_done)
        return done[0] if is_conversation(messages) else done

    async def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        state: StateChoice | None = None,
        mix: MixKind = "log",
    ) -> AsyncGenerator[str, None]:
        """Yield the text that continues a prompt, or the answer to the messages of a chat, piece by piece.

        A piece has whole characters. Leaving the iteration ends the generation. Of a chat, thoughts are left out.
        """
        start = Start.of(self.engine, state, mix)
        asked = await asyncio.to_thread(self._ask, prompt, params, start)
        reader = AnswerReader(asked.form)
        async with aclosing(self.engine.generate(asked.request, wait_for_room=True)) as events:
            async for event in events:
                if isinstance(event, TextDelta) and (text := joined(reader.feed(event.text), AnswerPart.CONTENT)):
                    yield text
        if text := joined(reader.finish(), AnswerPart.CONTENT):
            yield text

    @overload
    async def json(
        self,
        prompt: Prompt | Messages,
        schema: type[T],
        params: SamplingParams = ...,
        *,
        state: StateChoice | None = ...,
    ) -> T: ...

    @overload
    async def json(
        self,
        prompt: Prompt | Messages,
        schema: Schema,
        params: SamplingParams = ...,
        *,
        state: StateChoice | None = ...,
    ) -> object: ...

    async def json(
        self,
        prompt: Prompt | Messages,
        schema: type[T] | Schema,
        params: SamplingParams = DEFAULT_PARAMS,
        *,
        state: StateChoice | None = None,
    ) -> T | object:
        """Continue a prompt, or answer the messages of a chat, with JSON that fits a schema, and return it parsed.

        `schema` is a JSON schema, or a type that pydantic knows, such as a model, a dataclass or `list[int]`. The
        result is then of this type, and only its properties are generated. Raises StepError if `max_tokens` ended the
        text before the JSON was complete. Raises pydantic's ValidationError if the text breaks a rule of the type that
        no JSON schema can express.
        """
        described, parse = (schema, json.loads) if isinstance(schema, Mapping) else schema_of(schema)
        start = Start.of(self.engine, state)
        asked = await asyncio.to_thread(self._ask, prompt, params, start, json_grammar(described, "schema"))
        done = await complete(self.engine, asked, start, keep_state=False)
        if done.finish_reason == "length":
            raise StepError(f"the JSON was not complete after max_tokens={params.max_tokens} tokens: {done.text!r}")
        return parse(done.text)

    async def rank(
        self, context: Prompt, choices: Sequence[Prompt], *, calibrate: bool = False, state: State | None = None
    ) -> list[RankedChoice]:
        """Return the choices in the order of their probability as continuations of `context`, the likeliest first.

        With `calibrate`, a choice counts by what the context adds to it: see `rnn_engine.operations.scoring`. The
        context is run once for all choices.
        """
        initial = self._initial(state)
        tokens = await asyncio.to_thread(tokens_of_each, self.engine, choices, "choices")
        scores = await score_choices(
            self.engine,
            await asyncio.to_thread(prompt_tokens, self.engine, context, "context"),
            tokens,
            initial_state=initial,
            calibrate=calibrate,
        )
        texts = [self.engine.detokenize(each).decode(errors="replace") for each in tokens]
        shares = probabilities([score.total for score in scores])
        ranked = [RankedChoice(texts[n], n, shares[n], score) for n, score in enumerate(scores)]
        return sorted(ranked, key=lambda choice: -choice.probability)

    async def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[RankedDocument]:
        """Return the documents in the order of how well they answer `query`, the best first; `top_n` None returns all.

        A reranker that was loaded with its embedding model reads the state after each document and the query. Any other
        model is asked if a document answers the query, for which it was not trained.
        """
        if not query.strip():
            raise InvalidRequestError("query", query, "a text that is not empty")
        for number, document in enumerate(documents):
            if not document.strip():
                raise InvalidRequestError(f"documents.{number}", document, "a text that is not empty")
        if top_n is not None:
            check_whole("top_n", top_n, 1, 2**31 - 1)
        if not documents:
            return []
        pairs = [(query, document) for document in documents]
        prompts = await asyncio.to_thread(relevance_prompts, self.engine, pairs)
        found = await score_relevance(self.engine, prompts)
        way = method(self.engine)
        ranked = [RankedDocument(documents[n], n, each.score, way) for n, each in enumerate(found)]
        return sorted(ranked, key=lambda document: -document.score)[:top_n]

    async def logprobs(self, texts: Sequence[Prompt], *, state: State | None = None) -> list[ChoiceScore]:
        """Return the log-probability of each text and of each of its tokens, from the beginning of a text on.

        A score has `total`, `mean`, `perplexity` and `per_byte`; `given.tokens` has the tokens.
        """
        initial = self._initial(state)
        tokens = await asyncio.to_thread(tokens_of_each, self.engine, texts, "texts")
        return list(await score_choices(self.engine, (), tokens, initial_state=initial)) if tokens else []

    async def score(
        self, pairs: Sequence[tuple[Prompt, Prompt]], *, alternatives: int = 0, state: State | None = None
    ) -> list[Continuation]:
        """Return the log-probability of each pair's second text after its first, and that of each of its tokens.

        Each token also has its `alternatives` likeliest tokens (`TokenInfo.top`). A context that several pairs share is
        run once.
        """
        initial = self._initial(state)
        tokens = await asyncio.to_thread(tokens_of_pairs, self.engine, pairs)
        return await score_pairs(self.engine, tokens, initial_state=initial, alternatives=alternatives)

    async def embed(
        self,
        texts: Sequence[Prompt],
        settings: EmbeddingSettings = DEFAULT_EMBEDDING,
        *,
        task: EmbeddingTask | None = None,
        state: State | None = None,
    ) -> F32:
        """Return a vector for each text: [texts, dimensions] f32.

        A model made for embedding has a vector of its own for each `task`: retrieval, similarity or classification. Any
        other model's vectors are parts of the recurrent state after a text, as `settings` say.
        """
        if task is not None:
            settings = replace(settings, task=task)
        initial = self._initial(state)
        tokens = await asyncio.to_thread(tokens_of_each, self.engine, texts, "texts")
        if not tokens:
            raise InvalidRequestError("texts", [], "at least one text")
        embeddings = await embed(self.engine, tokens, settings, initial_state=initial, wait_for_room=True)
        return np.stack([each.vector for each in embeddings])

    async def collection(self, name: str = "documents", folder: str | Path | None = None) -> AsyncCollection:
        """Return the collection of documents of this name, which is made if there is none.

        It is kept in `folder` over restarts, or else in memory. Give `cache` a disk, too, when the model is loaded:
        then the states after the documents are kept as well. Raises InvalidRequestError for a bad name, and StateError
        if the folder can't be used, or another process uses it.
        """
        place = None if folder is None else Path(folder).resolve()
        async with self._opening:
            if place not in self._stores:
                self._stores[place] = await asyncio.to_thread(DocumentStore, place)
            store = self._stores[place]
            try:
                found = await store.database.read(lambda db: store.find(db, _OWNER, name))
            except NotFoundError:
                found = await create_collection(self.engine, store, _OWNER, name)
            return AsyncCollection(self.engine, store, found)

    async def state(self, prompt: Prompt | Messages = "", *, state: State | None = None) -> State:
        """Return the state after a text, token ids or the messages of a chat, which start from `state`.

        Without a prompt, returns `state` itself, or the empty state.
        """
        start = Start.of(self.engine, state).only

        def read() -> Sequence[int]:
            if not is_messages(prompt):
                return prompt_tokens(self.engine, prompt)
            return prompt_after(self.engine, start, Conversation(parse_messages(prompt), answers=False)).tokens

        tokens = await asyncio.to_thread(read)
        if not tokens:
            return state or State(self.engine.info.shape.initial_state(), self.state_files)
        frozen, _ = await run_tokens(self.engine, start, tokens, wait_for_room=True)
        return State.of(frozen, self.state_files)

    async def load_state(self, path: str | Path, *, any_model: bool = False) -> State:
        """Read a state file in any supported format, such as a tuned initial state. Raises StateError.

        A file that says that its state was made for another model is refused unless `any_model` is true.
        """
        return await asyncio.to_thread(State.read, path, self.state_files, any_model=any_model)

    def tokenize(self, text: str) -> list[int]:
        return self.engine.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids; a part of a character becomes U+FFFD."""
        return self.engine.detokenize(tokens).decode(errors="replace")

    async def close(self) -> None:
        """End what runs with EngineClosedError, free the device and close collections. Idempotent."""
        try:
            await self.engine.close()
        finally:
            for store in self._stores.values():
                store.close()

    def _initial(self, state: State | None) -> InitialState | None:
        frozen = Start.of(self.engine, state).only
        return None if frozen is None else frozen.for_request

    def _ask(
        self, prompt: Prompt | Messages, params: SamplingParams, start: Start, grammar: Grammar | None = None
    ) -> Asked:
        if is_messages(prompt):
            thinking = None if grammar is None else False
            return answer(self.engine, prompt, params, start, ChatOptions(thinking=thinking), grammar)
        return continuation(self.engine, prompt, params, start, grammar)

    async def _complete_all(
        self,
        ask: Callable[[], Sequence[Asked]],
        start: Start,
        *,
        keep_state: bool,
        progress: bool | None,
        on_done: OnDone,
    ) -> list[Completion]:
        """Run the requests that `ask` returns, a few more at a time than there are slots; return their completions."""
        asked = await asyncio.to_thread(ask)
        done: dict[int, Completion] = {}
        waiting = iter(enumerate(asked))

        async def work() -> None:
            for number, each in waiting:
                done[number] = await complete(self.engine, each, start, keep_state=keep_state)
                report(done[number].completion_tokens)
                on_done(number, done[number])

        shown = self.shows_progress if progress is None else progress
        with completion_bar(len(asked), shown=shown and len(asked) > 1) as report:
            count = min(_AHEAD * self.engine.info.num_slots, len(asked))
            tasks = [asyncio.create_task(work()) for _ in range(count)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return [done[number] for number in range(len(asked))]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
