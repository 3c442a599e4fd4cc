"""A trie that maps packed token sequences to values.

It finds how far a prompt follows any known sequence, and which of the prompt's prefixes have a value.

A trie with one node per token costs some 125 bytes a token, and every full run of the garbage collector visits all its
nodes. In this one each step of pygtrie's trie is a block of tokens, so a node stands for whole blocks. A node keeps one
sorted list of its continuations: the blocks of its children, and the tails (shorter than a block) that have a value. In
a sorted list, the sequence that shares the longest prefix with a given sequence is next to that sequence's place. So
one bisection finds the position at which a prompt leaves the known paths.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pygtrie

from rnn_engine_states.tokens import TOKEN_BYTES, shared_tokens

V = TypeVar("V")

# Estimates in bytes of the Python objects without the tokens, measured with the cache's records as values.
_TREE_BYTES = 2000
_NODE_BYTES = 950
_VALUE_BYTES = 600


class _Node(Generic[V]):
    """A node of the trie: `depth` whole blocks of tokens from the root, of which `label` is the last."""

    __slots__ = ("continuations", "depth", "label", "parent", "values")

    def __init__(self, parent: _Node[V] | None, label: bytes) -> None:
        self.parent = parent
        self.label = label
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.values: dict[bytes, V] = {}  # tail -> value
        self.continuations: list[bytes] = []  # sorted: tails that aren't empty, and labels of children

    def path(self) -> tuple[bytes, ...]:
        """Return the blocks of packed tokens from the root to this node."""
        labels = []
        node = self
        while node.parent is not None:
            labels.append(node.label)
            node = node.parent
        return tuple(reversed(labels))


@dataclass(frozen=True, slots=True)
class Place(Generic[V]):
    """A position on a path: a node, and a `tail` shorter than a block. Valid while the tree has the node."""

    node: _Node[V]
    tail: bytes
    length: int  # tokens from the root

    def blocks(self) -> tuple[bytes, ...]:
        """Return the packed tokens from the root to here, in blocks of which the last may be shorter."""
        return (*self.node.path(), self.tail)

    def tokens(self) -> bytes:
        """Return the packed tokens from the root to this position."""
        return b"".join(self.blocks())

    def values_back(self) -> Iterator[V]:
        """Yield the values of the token sequence that ends here and of its prefixes, the longest first."""
        node: _Node[V] | None = self.node
        ahead = self.tail
        while node is not None:
            for tail in _prefixes_back(node.continuations, ahead):
                if tail in node.values:
                    yield node.values[tail]
            if b"" in node.values:
                yield node.values[b""]
            ahead = node.label
            node = node.parent


class TokenTree(Generic[V]):
    """A map from token sequences, packed as bytes, to values. It is a trie in which each step is a block of tokens.

    A path is known while it leads to a value: removing a value also forgets the path that only it used.
    """

    def __init__(self, block_tokens: int = 512) -> None:
        self._block = block_tokens * TOKEN_BYTES
        self._root: _Node[V] = _Node(None, b"")
        self._nodes: Any = pygtrie.Trie()  # path of blocks -> _Node
        self._nodes[()] = self._root
        self._size = 0
        self.num_bytes = _TREE_BYTES  # an estimate of the memory, including the records that are the values

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[V]:
        for node in self._nodes.itervalues():
            yield from node.values.values()

    def cost(self, tokens: bytes) -> int:
        """Return how many bytes the memory of the tree can grow at most if a value is set for the packed `tokens`."""
        return len(tokens) + _VALUE_BYTES + _NODE_BYTES * (len(tokens) // self._block)

    def put(self, tokens: bytes, value: V) -> Place[V]:
        """Set the value of the packed `tokens`, replacing an existing value. Return their place in the tree."""
        blocks = self._blocks(tokens)
        node = self._grow(blocks)
        tail = tokens[len(blocks) * self._block :]
        if tail not in node.values:
            self._size += 1
            self.num_bytes += _VALUE_BYTES + len(tail)
            if tail:
                insort(node.continuations, tail)
        node.values[tail] = value
        return Place(node, tail, len(tokens) // TOKEN_BYTES)

    def get(self, tokens: bytes) -> V | None:
        """Return the value of exactly the packed `tokens`, or None if they have none."""
        blocks = self._blocks(tokens)
        node: _Node[V] | None = self._nodes.get(blocks)
        return None if node is None else node.values.get(tokens[len(blocks) * self._block :])

    def remove(self, place: Place[V]) -> None:
        """Remove the value at `place`, a position in the tree, and the nodes that only this value needed."""
        node, tail = place.node, place.tail
        del node.values[tail]
        self._size -= 1
        self.num_bytes -= _VALUE_BYTES + len(tail)
        if tail:
            _discard(node.continuations, tail)
        self._prune(node)

    def follow(self, tokens: bytes) -> Place[V]:
        """Return the place after the longest prefix of `tokens` that is on a path in the tree."""
        node: _Node[V] = next(reversed(list(self._nodes.prefixes(self._blocks(tokens))))).value
        start = node.depth * self._block
        rest = tokens[start : start + self._block]
        known = _longest_shared(node.continuations, rest)
        return Place(node, rest[: known * TOKEN_BYTES], start // TOKEN_BYTES + known)

    def values_beyond(self, place: Place[V], most: int) -> list[V]:
        """Return values beyond `place`, looking at no more than `most` of them and of nodes."""
        values: list[V] = []
        ahead = [(place.node, place.tail)]
        while ahead:
            node, tail = ahead.pop()
            if node is not place.node and b"" in node.values:
                values.append(node.values[b""])
            first = bisect_right(node.continuations, tail) if tail else 0
            for longer in node.continuations[first : first + most]:
                if not longer.startswith(tail):
                    break
                most -= 1
                if len(longer) == self._block:
                    ahead.append((self._nodes[(*node.path(), longer)], b""))
                else:
                    values.append(node.values[longer])
        return values

    def _blocks(self, tokens: bytes) -> tuple[bytes, ...]:
        whole = len(tokens) - len(tokens) % self._block
        return tuple(tokens[start : start + self._block] for start in range(0, whole, self._block))

    def _grow(self, blocks: tuple[bytes, ...]) -> _Node[V]:
        trail = [step.value for step in self._nodes.prefixes(blocks)]
        known = len(trail)
        for label in blocks[known - 1 :]:
            parent = trail[-1]
            insort(parent.continuations, label)
            trail.append(_Node(parent, label))
        if len(trail) > known:
            self.num_bytes += (len(trail) - known) * (_NODE_BYTES + self._block)
            self._nodes[blocks] = trail[-1]  # the deepest first: one pass then sets those above it
            for depth, step in enumerate(self._nodes.walk_towards(blocks)):
                if depth >= known:
                    step.value = trail[depth]
        node: _Node[V] = trail[-1]
        return node

    def _prune(self, node: _Node[V]) -> None:
        top: _Node[V] | None = None
        while node.parent is not None and not node.values and not node.continuations:
            top = node
            self.num_bytes -= _NODE_BYTES + self._block
            _discard(node.parent.continuations, node.label)
            node = node.parent
        if top is not None:
            del self._nodes[top.path() :]


def _longest_shared(ordered: list[bytes], wanted: bytes) -> int:
    """Return the length in tokens of the longest prefix that `wanted` shares with any member of a sorted list."""
    at = bisect_left(ordered, wanted)
    return max((shared_tokens(near, wanted) for near in ordered[max(at - 1, 0) : at + 1]), default=0)


def _prefixes_back(ordered: list[bytes], wanted: bytes) -> Iterator[bytes]:
    """Yield the members of the sorted list `ordered` that are prefixes of `wanted`, the longest first.

    No member may be empty. Every member between a prefix of `wanted` and `wanted` itself begins with that prefix. So if
    the last member that isn't greater than `wanted` is no prefix of it, the search goes on with the prefix that those
    two share: every other prefix of `wanted` in the list is also a prefix of that.
    """
    while (at := bisect_right(ordered, wanted)) > 0:
        near = ordered[at - 1]
        if wanted.startswith(near):
            yield near
            wanted = near[:-TOKEN_BYTES]
        else:
            wanted = wanted[: shared_tokens(near, wanted) * TOKEN_BYTES]


def _discard(ordered: list[bytes], member: bytes) -> None:
    del ordered[bisect_left(ordered, member)]
