"""The positions of places of a text among its tokens, and the turns of a chat as such positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template import ChatMessage, Conversation, Role, WorldTemplate
from rnn_engine.demo import model_path
from rnn_engine.operations.chat_prompt import token_positions
from rnn_engine.tokenizer import Tokenizer, load_tokenizer
from tests.support.fake_engine import FakeEngine

VOCAB_SIZES = {"auto": 2317, "world": 65536}  # by the tokenizer's choice

words = st.text(st.sampled_from("aB.? \n\"'é1:"), max_size=12)
messages = st.lists(st.builds(ChatMessage, st.sampled_from(list(Role)), words), min_size=1, max_size=4)


class Words(FakeEngine):
    """An engine with the tokens of a real vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self._tokenizer.decode_bytes, tokens))


def test_a_token_that_straddles_a_place_lies_behind_it() -> None:
    lengths = {1: b"ab", 2: b"cde", 3: b""}
    engine = Words(load_tokenizer("none", model_path(), 4))
    engine.detokenize = lambda tokens: b"".join(lengths[token] for token in tokens)  # type: ignore[method-assign]
    assert token_positions(engine, [1, 2, 3, 1], [0, 1, 2, 4, 5, 7, 9]) == (0, 0, 1, 1, 3, 4, 4)


@pytest.mark.parametrize("choice", VOCAB_SIZES)
def test_longer_conversations_begin_with_the_tokens_of_their_turns(choice: str) -> None:
    engine = Words(load_tokenizer(choice, model_path(), VOCAB_SIZES[choice]))
    check: Callable[[], None] = given(conversation=messages)(lambda conversation: _check_turns(engine, conversation))
    check()


def _check_turns(engine: Words, conversation: list[ChatMessage]) -> None:
    rendered = WorldTemplate().render(Conversation(conversation), 10_000)
    prompt = engine.tokenize(rendered.text)
    turns = [rendered.text[:end] for end in rendered.turn_ends.values()]
    positions = token_positions(engine, prompt, [len(turn.encode()) for turn in turns])
    for count, position in enumerate(positions, start=1):
        assert engine.detokenize(prompt[:position]).decode() == turns[count - 1]
        shorter = engine.tokenize(WorldTemplate().render(Conversation(conversation[:count]), 10_000).text)
        assert prompt[:position] == shorter[:position]
