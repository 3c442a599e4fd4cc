"""The roots under which checkpoints are kept: what a sequence starts from, and who shares it.

A scope is a path of names, as `ann/1f3a`; prompts of one scope never go on from what another has kept. The empty one is
for a server whose clients share everything.
"""

from __future__ import annotations


def make_root(initial_state: str, scope: str) -> str:
    """Return the root for sequences that start from the state with this digest, in a scope."""
    return f"{initial_state}/{scope}" if scope else initial_state


def is_of_state(root: str, initial_state: str) -> bool:
    """Whether a root is for sequences that start from this state, in whatever scope."""
    return root.partition("/")[0] == initial_state


def is_within(root: str, scope: str) -> bool:
    """Whether a root is in a scope or in one below it."""
    own = root.partition("/")[2]
    return own == scope or own.startswith(f"{scope}/")
