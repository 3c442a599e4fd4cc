"""Every sequence advances in every step, bounds hold, and no part of a step is left unused without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.requests import Client
from rnn_engine.scheduler.queue import TokenDemand, allocate_tokens

demand_lists = st.lists(
    st.integers(1, 200).flatmap(lambda tokens: st.builds(TokenDemand, st.just(tokens), st.integers(1, tokens))),
    min_size=1,
    max_size=12,
)


@given(demands=demand_lists, spare_tokens=st.integers(0, 100), spare_rows=st.integers(0, 100))
def test_all_advance_within_the_bounds_and_nothing_is_left_without_need(
    demands: list[TokenDemand], spare_tokens: int, spare_rows: int
) -> None:
    max_tokens, max_rows = len(demands) + spare_tokens, len(demands) + spare_rows
    granted = allocate_tokens(demands, max_tokens, max_rows)
    wanted = [max(1, demand.rows - (demand.tokens - tokens)) for demand, tokens in zip(demands, granted, strict=True)]
    assert all(1 <= tokens <= demand.tokens for demand, tokens in zip(demands, granted, strict=True))
    assert sum(granted) <= max_tokens
    assert sum(wanted) <= max_rows
    for demand, tokens in zip(demands, granted, strict=True):
        if tokens < demand.tokens:
            wants_another = tokens >= demand.tokens - demand.rows + 1
            assert sum(granted) == max_tokens or (wants_another and sum(wanted) == max_rows)


@given(demands=demand_lists, spare=st.integers(0, 100))
def test_every_prompt_gets_its_equal_part_of_half(demands: list[TokenDemand], spare: int) -> None:
    granted = allocate_tokens(demands, len(demands) + spare, 10_000)
    prompts = sum(demand.tokens > 1 for demand in demands)
    for demand, tokens in zip(demands, granted, strict=True):
        assert tokens >= min(demand.tokens, 1 + spare // (2 * max(prompts, 1)))


def test_what_is_left_goes_to_the_oldest_first() -> None:
    assert allocate_tokens([TokenDemand(1), TokenDemand(100), TokenDemand(100)], max_tokens=43, max_rows=8) == [
        1,
        31,
        11,
    ]


def test_a_scored_prompt_is_cut_to_the_rows_and_the_tokens_go_to_the_next() -> None:
    assert allocate_tokens([TokenDemand(100, rows=100), TokenDemand(100)], max_tokens=64, max_rows=10) == [9, 55]


def test_a_prompt_that_is_scored_at_its_end_is_cut_where_the_rows_end() -> None:
    assert allocate_tokens([TokenDemand(50, rows=20), TokenDemand(100)], max_tokens=64, max_rows=10) == [39, 25]


@given(demands=demand_lists, data=st.data(), spare=st.integers(0, 100))
def test_half_of_a_clients_part_goes_to_its_prompts_in_equal_parts(
    demands: list[TokenDemand], data: st.DataObject, spare: int
) -> None:
    sharing = [Client("a"), Client("b", 3.0), Client("c", 0.5)]
    clients = data.draw(st.lists(st.sampled_from(sharing), min_size=len(demands), max_size=len(demands)))
    granted = allocate_tokens(demands, len(demands) + spare, 10_000, clients)
    prompts = [owner for owner, demand in zip(clients, demands, strict=True) if demand.tokens > 1]
    weight = sum(owner.weight for owner in set(prompts))
    assert sum(granted) == min(len(demands) + spare, sum(demand.tokens for demand in demands))
    for demand, tokens, owner in zip(demands, granted, clients, strict=True):
        if demand.tokens > 1:
            part = int(int(spare * owner.weight / weight) * 0.5) // prompts.count(owner)
            assert tokens >= min(demand.tokens, 1 + part)


def test_one_client_does_not_take_the_step_of_another() -> None:
    many, few = Client("many"), Client("few")
    demands = [TokenDemand(1000)] * 7 + [TokenDemand(60)]
    assert allocate_tokens(demands, 128, 16, [many] * 7 + [few])[-1] == 60
    assert allocate_tokens(demands, 128, 16)[-1] == 8
