"""The choice of the replica that a request goes to."""

from __future__ import annotations

import random
from collections import Counter

from rnn_engine.fleet.routing import QUEUED_TOKENS, RUNNING_TOKENS, Candidate, PrefixRouter
from rnn_engine_states.cache.browse import BLOCK_TOKENS
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from tests.support.toy_states import ToyDevice, toy_shape


def replicas(*outstanding: int, slots: int = 8) -> list[Candidate]:
    return [Candidate(name, slots, count) for name, count in zip("abcd", outstanding, strict=False)]


def prompt(seed: int, length: int = 3 * BLOCK_TOKENS) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1000) for _ in range(length)]


def test_a_new_prompt_goes_where_the_fewest_requests_are() -> None:
    router = PrefixRouter()
    assert router.choose(replicas(3, 1, 2), "none", prompt(1)).name == "b"
    assert router.choose(replicas(0, 0), "none", []).name == "a"
    unlike = [Candidate("a", 2, 1), Candidate("b", 8, 1)]
    assert router.choose(unlike, "none", prompt(2)).name == "b"


def test_a_prompt_follows_the_longest_beginning() -> None:
    router = PrefixRouter()
    common = prompt(1, 2 * BLOCK_TOKENS)
    assert router.choose(replicas(0, 1), "none", [*common, *prompt(2)]).name == "a"
    assert router.choose(replicas(1, 0), "none", [*common[:BLOCK_TOKENS], *prompt(3)]).name == "a"
    assert router.choose(replicas(9, 0), "none", prompt(4)).name == "b"
    assert router.choose(replicas(1, 0), "none", [*common, *prompt(5)]).name == "a"
    assert router.choose(replicas(0, 1), "none", [*prompt(4), 7]).name == "b"


def test_less_than_a_block_in_common_is_none() -> None:
    router = PrefixRouter()
    common = prompt(1, BLOCK_TOKENS - 1)
    assert router.choose(replicas(0, 1), "none", [*common, 1, 2]).name == "a"
    assert router.choose(replicas(1, 0), "none", [*common, 3, 4]).name == "b"


def test_it_does_not_wait_longer_than_it_saves() -> None:
    kept = prompt(1)
    most = len(kept) // RUNNING_TOKENS
    for running, name in ((most - 1, "a"), (most + 1, "b")):
        router = PrefixRouter()
        router.choose(replicas(0, 1, slots=100), "none", kept)
        assert router.choose(replicas(running, 0, slots=100), "none", kept).name == name
    router = PrefixRouter()
    router.choose(replicas(0, 1, slots=1), "none", kept)
    queued = (len(kept) - RUNNING_TOKENS) // QUEUED_TOKENS
    assert router.choose(replicas(queued - 1, 0, slots=1), "none", kept).name == "a"
    assert router.choose(replicas(queued + 1, 0, slots=1), "none", kept).name == "b"


def test_other_states_and_other_clients_share_nothing() -> None:
    router = PrefixRouter()
    assert router.choose(replicas(0, 1), "none", prompt(1)).name == "a"
    assert router.choose(replicas(1, 0), "none/ann", prompt(1)).name == "b"
    assert router.choose(replicas(1, 0), "none", prompt(1)).name == "a"


def test_what_is_gone_is_forgotten() -> None:
    router = PrefixRouter()
    assert router.choose(replicas(0, 1), "none", prompt(1)).name == "a"
    router.forget("a")
    assert router.choose(replicas(1, 0), "none", prompt(1)).name == "b"
    small = PrefixRouter(most_blocks=3)
    small.choose(replicas(0, 1), "none", prompt(1))
    small.choose(replicas(0, 1), "none", prompt(2))
    assert small.choose(replicas(1, 0), "none", prompt(1)).name == "b"


def test_prompts_that_arrive_together_and_begin_alike_run_it_on_few_replicas() -> None:
    router, common = PrefixRouter(), prompt(1, 1000)
    outstanding = Counter(dict.fromkeys("abcd", 0))
    for number in range(64):
        candidates = [Candidate(name, 16, outstanding[name]) for name in "abcd"]
        outstanding[router.choose(candidates, "none", [*common, number]).name] += 1
    assert sum(count > 0 for count in outstanding.values()) == 2


class SummarisedCache:
    """A replica's cache, with a method that reports it to fronts as surveys do."""

    def __init__(self) -> None:
        shape = toy_shape()
        device = ToyDevice(shape, num_slots=1)
        device.start([1])
        self.cache = make_cache(shape, "toy", device)
        self.cache.summarise()

    def keep(self, tokens: list[int], root: str = "none") -> None:
        assert self.cache.insert(root, tokens, 0, kind=CheckpointKind.PROMPT_END)

    def tell(self, name: str, *fronts: PrefixRouter) -> None:
        assert self.cache.summary is not None
        for front in fronts:
            front.note(name, self.cache.summary.changes(front.versions().get(name)))


def test_a_second_front_knows_what_the_first_one_sent() -> None:
    first, kept = PrefixRouter(), SummarisedCache()
    common = prompt(1, 3 * BLOCK_TOKENS + 5)
    assert first.choose(replicas(0, 1), "none", common).name == "a"
    kept.keep(common)
    for asked, name in (
        ([*common, *prompt(2)], "a"),
        (common, "a"),
        ([*common[:-1], *prompt(3)], "b"),  # no state is cached at the point at which it leaves
        (common[:-1], "b"),
    ):
        second = PrefixRouter()
        kept.tell("a", first, second)
        assert second.choose(replicas(1, 0), "none", asked).name == name


def test_summaries_tell_states_and_scopes_apart() -> None:
    front, kept = PrefixRouter(), SummarisedCache()
    kept.keep(prompt(1), root="none/ann")
    kept.tell("a", front)
    assert front.choose(replicas(1, 0), "none/ann", prompt(1)).name == "a"
    assert front.choose(replicas(1, 0), "none/bob", prompt(1)).name == "b"
    assert front.choose(replicas(1, 0), "state", prompt(1)).name == "b"


def test_what_has_given_way_is_forgotten_and_what_it_shared_is_not() -> None:
    front, kept = PrefixRouter(), SummarisedCache()
    long = prompt(1, 6 * BLOCK_TOKENS)
    for tokens in (long, long[: 2 * BLOCK_TOKENS]):
        front.choose(replicas(0, 9), "none", tokens)
        kept.keep(tokens)
    for _ in range(3):
        kept.tell("a", front)
    kept.cache.drop_position(str(next(one.id for one in kept.cache.checkpoints() if one.length == len(long))))
    kept.tell("a", front)
    two_blocks = 2 * BLOCK_TOKENS // RUNNING_TOKENS
    assert front.choose(replicas(two_blocks - 1, 0, slots=99), "none", long).name == "a"


def test_all_is_forgotten_with_the_last_checkpoint() -> None:
    front, kept = PrefixRouter(), SummarisedCache()
    assert front.choose(replicas(0, 1), "none", prompt(1)).name == "a"
    kept.keep(prompt(1))
    for _ in range(2):
        kept.tell("a", front)
    kept.cache.drop_all()
    kept.tell("a", front)
    assert front.choose(replicas(1, 0), "none", prompt(1)).name == "b"


def test_what_was_sent_a_moment_ago_outlives_an_older_summary() -> None:
    front, kept = PrefixRouter(), SummarisedCache()
    kept.keep(prompt(1))
    kept.tell("a", front)
    assert front.choose(replicas(0, 1), "none", prompt(1)).name == "a"  # will be run and kept again
    kept.cache.drop_all()
    kept.tell("a", front)
    assert front.choose(replicas(1, 0), "none", prompt(1)).name == "a"


def test_a_replica_that_starts_anew_keeps_nothing() -> None:
    front, kept = PrefixRouter(), SummarisedCache()
    kept.keep(prompt(1))
    kept.tell("a", front)
    front.forget("a")
    assert front.versions() == {}
    SummarisedCache().tell("a", front)
    assert front.choose(replicas(1, 0), "none", prompt(1)).name == "b"
