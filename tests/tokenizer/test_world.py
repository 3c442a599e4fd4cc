"""The World tokenizer: the vocabulary's ids, greedy longest match, and the bytes of every single id."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import InvalidRequestError
from rnn_engine.tokenizer.world import WorldTokenizer

LONGEST_PIECE = 128  # bytes
NEAR_THE_VOCABULARY = "abé§ \n\t~=0的。ж\x00\U0001f600"  # with long pieces, and characters without a piece
WORLD_HAS_NO_SPECIAL_TOKENS = [61, 125, 25258, 7588, 2318, 125, 790, 125, 49520, 125, 63]


@pytest.fixture(scope="module")
def world() -> WorldTokenizer:
    return WorldTokenizer()


@pytest.fixture(scope="module")
def world_in_parts() -> WorldTokenizer:
    return WorldTokenizer(part_characters=4 * LONGEST_PIECE)


@pytest.fixture(scope="module")
def pieces(world: WorldTokenizer) -> dict[bytes, int]:
    """Return every piece of the vocabulary with its id."""
    return {world.decode_bytes(token): token for token in range(1, world.size)}


def greedy(text: bytes, pieces: dict[bytes, int]) -> list[int]:
    """Tokenize by the longest piece at every place, found by trying one length after the other."""
    tokens = []
    place = 0
    while place < len(text):
        ends = range(min(len(text), place + LONGEST_PIECE), place, -1)
        end = next(end for end in ends if text[place:end] in pieces)
        tokens.append(pieces[text[place:end]])
        place = end
    return tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        (" ", [33]),
        ("\x00", [1]),
        (" " * 128, [65529]),
        ("~" * 30, [65296, 54439, 27579, 2411]),
        ("\U000683b8", [242, 169, 143, 185]),
        (
            "I'll 'd test блабла 以下は、",
            [74, 5229, 274, 101, 32223, 5092, 27980, 2795, 27980, 33, 10399, 10258, 10139, 10079],
        ),
        ("<|endoftext|><|padding|>", WORLD_HAS_NO_SPECIAL_TOKENS),
    ],
)
def test_known_ids(world: WorldTokenizer, text: str, tokens: list[int]) -> None:
    assert world.encode(text) == tokens


def test_pieces_are_all_different_and_the_single_bytes_come_first(pieces: dict[bytes, int]) -> None:
    assert len(pieces) == 65529
    assert max(map(len, pieces)) == LONGEST_PIECE
    assert [pieces[bytes([byte])] for byte in range(256)] == list(range(1, 257))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text(max_size=40) | st.text(NEAR_THE_VOCABULARY, max_size=200))
def test_encoding_is_greedy_and_decoding_undoes_it(world: WorldTokenizer, pieces: dict[bytes, int], text: str) -> None:
    tokens = world.encode(text)
    assert tokens == greedy(text.encode(), pieces)
    assert b"".join(world.decode_bytes(token) for token in tokens) == text.encode()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    words=st.lists(
        st.text(NEAR_THE_VOCABULARY, max_size=4).flatmap(lambda word: st.integers(1, 150).map(lambda n: word * n)),
        min_size=6,
        max_size=20,
    )
)
def test_a_long_text_in_parts_has_the_tokens_of_the_whole(
    world: WorldTokenizer, world_in_parts: WorldTokenizer, words: list[str]
) -> None:
    text = "".join(words)
    assert world_in_parts.encode(text) == world.encode(text)


def test_ids_without_text(world: WorldTokenizer) -> None:
    assert [world.decode_bytes(token) for token in (0, 65530, 65535, -1)] == [b"", b"", b"", b""]


@pytest.mark.parametrize("text", ["\ud83d", "fine \udc00 until here"])
def test_half_of_a_surrogate_pair_is_refused(world: WorldTokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"text: '\\ud\w+' is not allowed; expected Unicode text"):
        world.encode(text)
