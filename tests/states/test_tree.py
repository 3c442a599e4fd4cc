"""The token tree compared with a dictionary of lists."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from rnn_engine_states.cache.tree import Place, TokenTree
from rnn_engine_states.tokens import pack

PATH = st.lists(st.integers(0, 2), max_size=9).map(tuple)
Tokens = tuple[int, ...]


def fill(paths: list[Tokens], block: int) -> tuple[TokenTree[str], dict[Tokens, Place[str]]]:
    tree: TokenTree[str] = TokenTree(block)
    return tree, {path: tree.put(pack(path), str(path)) for path in paths}


def shared(first: Tokens, second: Tokens) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))


@given(st.lists(PATH), st.lists(PATH), PATH, st.integers(1, 4))
def test_answers_are_those_of_a_dictionary(
    paths: list[Tokens], removed: list[Tokens], prompt: Tokens, block: int
) -> None:
    tree, places = fill(paths, block)
    for path in removed:
        if path in places:
            tree.remove(places.pop(path))
    place = tree.follow(pack(prompt))

    assert len(tree) == len(places)
    assert sorted(tree) == sorted(map(str, places))
    assert place.length == max((shared(path, prompt) for path in places), default=0)
    assert place.tokens() == pack(prompt[: place.length])
    prefixes = [prompt[:length] for length in range(len(prompt), -1, -1)]
    assert list(place.values_back()) == [str(prefix) for prefix in prefixes if prefix in places]
    assert tree.get(pack(prompt)) == (str(prompt) if prompt in places else None)


@given(st.lists(PATH, min_size=1), st.integers(1, 4))
def test_a_place_knows_its_tokens_and_what_lies_before_it(paths: list[Tokens], block: int) -> None:
    _, places = fill(paths, block)
    for path, place in places.items():
        assert place.tokens() == pack(path)
        assert place.length == len(path)
        prefixes = [path[:length] for length in range(len(path), -1, -1)]
        assert list(place.values_back()) == [str(prefix) for prefix in prefixes if prefix in places]


@given(st.lists(PATH), PATH, st.integers(1, 4), st.integers(0, 30))
def test_values_beyond_a_place_are_those_of_longer_paths(
    paths: list[Tokens], prompt: Tokens, block: int, most: int
) -> None:
    tree, places = fill(paths, block)
    place = tree.follow(pack(prompt))
    start = prompt[: place.length]
    longer = {str(path) for path in places if path[: len(start)] == start and path != start}
    found = tree.values_beyond(place, most)
    assert len(set(found)) == len(found) <= 2 * most
    assert longer.issuperset(found)
    if most >= len(longer) + sum(map(len, paths)):
        assert longer == set(found)


def test_a_second_value_takes_the_place_of_the_first() -> None:
    tree: TokenTree[str] = TokenTree(2)
    tree.put(pack([1, 2, 3]), "first")
    tree.put(pack([1, 2, 3]), "second")
    assert len(tree) == 1
    assert tree.get(pack([1, 2, 3])) == "second"


def test_a_path_of_a_hundred_thousand_tokens_needs_no_deep_stack() -> None:
    tree: TokenTree[str] = TokenTree()
    tokens = list(range(100_000))
    place = tree.put(pack(tokens), "long")
    found = tree.follow(pack([*tokens[:70_000], 5]))
    assert found.length == 70_000
    assert list(found.values_back()) == []
    tree.remove(place)
    assert tree.follow(pack(tokens)).length == 0
