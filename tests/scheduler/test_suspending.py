"""Clients share slots and steps: the order of slots, the requests that give theirs up, and unchanged answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import OverloadedError, StepError, TimeLimitError
from rnn_engine.requests import Client, Finished, GenerateRequest, SamplingParams
from rnn_engine.scheduler import DraftSettings
from rnn_engine.types import LoraPairs, LoraRoom, PendingState, State
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, table_logits
from tests.support.token_masks import Forms, Residues

TOKENIZER = ByteTokenizer()
VOCAB_SIZE = TOKENIZER.size
LOGITS = table_logits(VOCAB_SIZE)
LOUD, QUIET, THIRD = (Client(name) for name in ("loud", "quiet", "third"))
BATCH = Client("batch", is_background=True)


def make(slots: int = 4, least_tokens: int = 8) -> Clients:
    return Clients(FakeRunner(LOGITS, num_slots=slots), TOKENIZER.decode_bytes, least_tokens=least_tokens)


def ask(client: Client, max_tokens: int = 200, prompt: Sequence[int] = (1, 2, 3)) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, seed=0)
    return GenerateRequest(prompt, max_tokens=max_tokens, stop_tokens=(), client=client, sampling=sampling)


def held(clients: Clients) -> Counter[str]:
    """Return the number of slots that each client holds."""
    requests = [clients.requests[use.request] for use in clients.scheduler.slot_uses()]
    return Counter(request.client.name for request in requests)


def steps_until(clients: Clients, key: int, *, ended: bool = False) -> int:
    """Return the number of steps until a request has its first event, or its last."""
    for steps in range(1000):
        heard = clients.heard[key]
        if heard.ended if ended else heard.events:
            return steps
        clients.step()
    raise AssertionError("it is never served")


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_quiet_client_is_served_at_once_beside_one_that_fills_all_slots_for_long(slots: int) -> None:
    clients = make(slots)
    for _ in range(80):
        clients.send(ask(LOUD, 5000))
    for _ in range(20):
        clients.step()
    quiet = clients.send(ask(QUIET, 5))
    assert steps_until(clients, quiet) <= 3  # its prompt may take two steps beside answers of another client
    assert steps_until(clients, quiet, ended=True) <= 6
    clients.step()
    assert held(clients) == {"loud": slots}


@pytest.mark.parametrize(("slots", "most"), [(1, 64), (2, 32), (8, 8), (16, 4)])
def test_the_more_slots_a_client_has_the_sooner_it_gives_one_up(slots: int, most: int) -> None:
    clients = make(slots, least_tokens=64)
    for _ in range(slots):
        clients.send(ask(LOUD, 5000, prompt=[1]))
    clients.step()
    quiet = clients.send(ask(QUIET, 5))
    assert most - 2 <= steps_until(clients, quiet) <= most + 3


def test_one_client_alone_is_served_in_order_and_never_suspended() -> None:
    clients = make(least_tokens=0)
    keys = [clients.send(ask(LOUD, 20)) for _ in range(20)]
    ends: list[int] = []
    while clients.scheduler.has_work:
        ends += [delivery.key for delivery in clients.step() if isinstance(delivery.outcome, Finished)]
    assert ends == keys
    assert clients.scheduler.counters.suspensions == 0


@pytest.mark.parametrize(("slots", "expected"), [(4, (2, 2)), (8, (4, 4))])
def test_two_clients_that_want_all_slots_have_half_each(slots: int, expected: tuple[int, int]) -> None:
    clients = make(slots)
    for client in (LOUD, QUIET):
        for _ in range(20):
            clients.send(ask(client, 1000))
        for _ in range(12):
            clients.step()
    suspensions = clients.scheduler.counters.suspensions
    for _ in range(100):
        clients.step()
    assert (held(clients)["loud"], held(clients)["quiet"]) == expected
    assert clients.scheduler.counters.suspensions == suspensions, "nothing is gained by going on to suspend"


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 2.0, 4.0), (0.5, 0.5, 0.5, 0.5, 0.5)])
def test_tokens_are_shared_by_weight(slots: int, weights: tuple[float, ...]) -> None:
    clients, num_steps = make(slots), 200
    sharing = [Client(str(number), weight) for number, weight in enumerate(weights)]
    for client in sharing:
        for _ in range(8):
            clients.send(ask(client, 1000))
    for _ in range(num_steps):
        clients.step()
    tokens = Counter[str]()
    for key, heard in clients.heard.items():
        tokens[clients.requests[key].client.name] += len(heard.tokens)
    assert sum(tokens.values()) > 0.95 * slots * num_steps, "slots are left empty"
    for client in sharing:  # as near as whole slots come to it
        share = slots * num_steps * client.weight / sum(weights)
        assert abs(tokens[client.name] - share) <= num_steps
        assert tokens[client.name] > 0.5 * min(share, num_steps)


def test_client_with_many_requests_does_not_pass_those_of_others_in_the_queue() -> None:
    clients = make(1, least_tokens=1000)
    clients.send(ask(LOUD, 3))
    loud = [clients.send(ask(LOUD, 3)) for _ in range(5)]
    quiet, third = clients.send(ask(QUIET, 3)), clients.send(ask(THIRD, 3))
    ends: list[int] = []
    while clients.scheduler.has_work:
        ends += [delivery.key for delivery in clients.step() if isinstance(delivery.outcome, Finished)]
    assert set(ends[:4]) == {0, loud[0], quiet, third}


def test_prompts_of_a_client_do_not_take_the_steps_of_another() -> None:
    clients = make(8, least_tokens=1000)
    for number in range(7):
        clients.send(ask(LOUD, 5, prompt=[5 + number] * 500))
    for _ in range(3):
        clients.step()
    quiet = clients.send(ask(QUIET, 1, prompt=[1] * 24))
    assert steps_until(clients, quiet) <= 3


def suspend_one(clients: Clients, *, keep_end: bool = False) -> int:
    """Begin a request and have it suspended; return its key."""
    key = clients.send(replace(ask(LOUD, 50), keep_end=keep_end))
    for _ in range(10):
        clients.step()
    clients.send(ask(QUIET, 100))
    clients.step()
    assert held(clients) == {"quiet": 1}
    assert clients.scheduler.num_waiting == 1
    return key


def test_one_that_is_suspended_is_not_ended_for_waiting_in_the_queue() -> None:
    clients = make(1)
    key = suspend_one(clients)
    assert clients.scheduler.withdraw(key, OverloadedError("full", 1.0)) == []
    clients.run()
    assert_heard(clients.heard[key], run_alone(clients.requests[key], LOGITS, TOKENIZER.decode_bytes))


def test_one_whose_time_is_up_while_it_is_suspended_ends_with_what_it_has() -> None:
    clients = make(1)
    key = suspend_one(clients)
    assert clients.scheduler.expire(key, TimeLimitError("late")) == []
    clients.run()
    assert clients.heard[key].finished.reason == "length"
    assert 0 < len(clients.heard[key].tokens) < 50


def test_one_whose_client_leaves_while_it_is_suspended_is_gone() -> None:
    clients = make(1)
    key = suspend_one(clients)
    heard = len(clients.heard[key].events)
    clients.scheduler.cancel(key)
    clients.run()
    assert len(clients.heard[key].events) == heard
    assert (clients.scheduler.num_waiting, clients.scheduler.num_live) == (0, 0)


def test_one_that_is_paused_gives_its_slot_at_once_and_goes_on_when_it_is_read() -> None:
    clients = make(1, least_tokens=1000)
    key = clients.send(ask(LOUD, 50))
    clients.step()
    clients.scheduler.pause(key)
    quiet = clients.send(ask(QUIET, 5))
    while clients.scheduler.has_work:
        clients.step()
    assert clients.heard[quiet].ended
    assert not clients.heard[key].ended
    clients.scheduler.pause(key, paused=False)
    clients.run()
    assert_heard(clients.heard[key], run_alone(clients.requests[key], LOGITS, TOKENIZER.decode_bytes))


class Failing(FakeRunner):
    """A runner that fails to read or write states when the test says so."""

    fails_at = ""

    def start_read(self, slot: int) -> PendingState:
        if self.fails_at == "read":
            raise StepError("the state is not read")
        return super().start_read(slot)

    def write_state(self, slot: int, state: State | None) -> None:
        if self.fails_at == "write" and state is not None:
            raise StepError("the state is not written")
        super().write_state(slot, state)


@pytest.mark.parametrize("fails_at", ["read", "write"])
def test_state_that_the_device_does_not_move_fails_its_own_request_alone(fails_at: str) -> None:
    runner = Failing(LOGITS, num_slots=1)
    clients = Clients(runner, TOKENIZER.decode_bytes, least_tokens=8)
    loud = clients.send(ask(LOUD, 50))
    for _ in range(10):
        clients.step()
    quiet = clients.send(ask(QUIET, 5))
    runner.fails_at = fails_at
    clients.run()
    assert isinstance(clients.heard[loud].error, StepError)
    assert_heard(clients.heard[quiet], run_alone(clients.requests[quiet], LOGITS, TOKENIZER.decode_bytes))
    runner.fails_at = ""
    assert clients.ask(ask(LOUD, 5)).finished.completion_tokens == 5


def test_those_whose_states_are_on_the_host_survive_the_device() -> None:
    clients = make(1)
    key = suspend_one(clients, keep_end=True)
    aborted = clients.scheduler.abort(lambda: StepError("lost"), queued=False)
    assert [delivery.key for delivery in aborted] == [1]
    clients.take(aborted)
    runner = FakeRunner(LOGITS, num_slots=1, known_states=clients.runner.known_states)
    clients.runner.close()
    clients.scheduler.replace_runner(runner)
    clients.run()
    assert_heard(clients.heard[key], run_alone(clients.requests[key], LOGITS, TOKENIZER.decode_bytes))


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    top_p=st.sampled_from([0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    penalty_decay=st.sampled_from([0.9, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.5]),
    repeat_last_n=st.sampled_from([-1, 4]),
    logit_bias=st.sampled_from([{}, {7: 3.0}]),
    mirostat=st.sampled_from([0, 0, 2]),
    seed=st.integers(0, 2**53),
)
masks = st.sampled_from([None, None, lambda: Residues(VOCAB_SIZE), lambda: Forms(VOCAB_SIZE)])
arriving = st.builds(
    lambda prompt, client, **fields: GenerateRequest(prompt, client=client, **fields),
    st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=60),
    st.sampled_from([LOUD, LOUD, QUIET, THIRD, BATCH]),
    max_tokens=st.integers(0, 40),
    sampling=samplings,
    token_mask=masks,
    logprobs=st.sampled_from([None, None, 2]),
    keep_end=st.booleans(),
    stop=st.sampled_from([(), (b"a",)]),
)


@settings(max_examples=30, deadline=None)
@given(
    arrivals=st.lists(st.tuples(arriving, st.integers(0, 6)), min_size=4, max_size=24),
    slots=st.sampled_from([1, 2, 8]),
    least_tokens=st.integers(0, 6),
    draws=st.sampled_from([0, 1, 8]),
    drafts=st.booleans(),
    run_ahead=st.booleans(),
    mask_seconds=st.sampled_from([0.0, 60.0]),  # every mask is late, or none
)
def test_whoever_is_suspended_hears_what_it_would_alone(
    arrivals: list[tuple[GenerateRequest, int]],
    slots: int,
    least_tokens: int,
    draws: int,
    drafts: bool,
    run_ahead: bool,
    mask_seconds: float,
) -> None:
    spare = range(slots, slots + 2 * drafts)
    runner = FakeRunner(
        LOGITS, num_slots=slots + len(spare), num_candidates=32, max_draws=draws, num_penalty_slots=slots // 2
    )
    settings = DraftSettings(4, spare) if drafts else DraftSettings()
    clients = Clients(runner, TOKENIZER.decode_bytes, None, run_ahead, settings, least_tokens, mask_seconds)
    for request, num_steps in arrivals:
        clients.send(request)
        for _ in range(num_steps):
            clients.step()
    clients.run(20_000)
    for key, heard in clients.heard.items():
        assert_heard(heard, run_alone(clients.requests[key], LOGITS, TOKENIZER.decode_bytes))


@pytest.mark.parametrize("draws", [0, 1, 8])
def test_penalties_that_a_device_keeps_go_on_where_they_were(draws: int) -> None:
    runner = FakeRunner(LOGITS, num_slots=1, max_draws=draws, num_penalty_slots=1, num_candidates=32)
    clients = Clients(runner, TOKENIZER.decode_bytes, run_ahead=True, least_tokens=8)
    sampling = SamplingParams(temperature=1.0, frequency_penalty=1.0, repeat_penalty=1.3, repeat_last_n=-1, seed=3)
    for client in (LOUD, QUIET):
        clients.send(replace(ask(client, 150), sampling=sampling))
    clients.run()
    assert clients.scheduler.counters.suspensions > 10
    for key, request in clients.requests.items():
        assert_heard(clients.heard[key], run_alone(request, LOGITS, TOKENIZER.decode_bytes))


@pytest.mark.parametrize(("slots", "batches"), [(1, 2), (3, 2), (8, 3)])
def test_batches_do_not_suspend_each_other_all_the_time(slots: int, batches: int) -> None:
    clients = make(slots, least_tokens=16)
    for number in range(batches):
        for _ in range(20):
            clients.send(ask(Client(f"batch {number}", is_background=True), 1000))
    for _ in range(50):
        clients.step()
    before = clients.scheduler.counters.suspensions
    for _ in range(160):
        clients.step()
    assert clients.scheduler.counters.suspensions - before <= slots * 160 / 16 + slots


def test_a_request_whose_reader_is_behind_ends_at_its_time_limit() -> None:
    clients = make(1)
    first = clients.send(ask(LOUD, 1000))
    for _ in range(10):
        clients.step()
    clients.scheduler.pause(first, True)
    second = clients.send(ask(LOUD, 5))
    clients.take(clients.scheduler.expire(first, TimeLimitError("it takes too long")))
    clients.run()
    assert clients.heard[first].finished.reason == "length"
    assert clients.heard[second].ended


@pytest.mark.parametrize("prompts", [1, 2])
def test_long_prompts_on_two_devices_do_not_keep_others_out(prompts: int) -> None:
    runner = FakeRunner(LOGITS, num_slots=4, steps_at_once=2)
    clients = Clients(runner, TOKENIZER.decode_bytes)
    for _ in range(prompts):
        clients.send(ask(LOUD, 5, prompt=[1] * 2000))
    clients.step()
    quick = clients.send(ask(QUIET, 5))
    assert steps_until(clients, quick, ended=True) <= 20


# Requests with LoRAs, of which the runner has one place.


def test_a_request_that_may_not_pass_does_not_count_as_one_that_starts() -> None:
    """Else the worker would never rest, and the device would draw one token a step."""
    clients = make_with_a_place()
    running = ask_with(clients, "first", LOUD, 300)
    for _ in range(5):
        clients.step()
    ask_with(clients, "second", LOUD, 5)
    ask_with(clients, "first", LOUD, 5)
    clients.step()
    assert not clients.scheduler._admission.can_start
    clients.scheduler.pause(running, True)
    clients.step()
    assert not clients.scheduler.has_work
    clients.scheduler.pause(running, False)
    clients.run()
    assert all(heard.ended for heard in clients.heard.values())


def make_with_a_place(slots: int = 4) -> Clients:
    runner = FakeRunner(LOGITS, num_slots=slots, lora_room=LoraRoom(1))
    return Clients(runner, TOKENIZER.decode_bytes, least_tokens=8)


def ask_with(clients: Clients, lora: str, client: Client, max_tokens: int) -> int:
    start = replace(clients.after((), logits=False), root=lora, lora=LoraPairs(lora, {}))
    return clients.send(replace(ask(client, max_tokens), initial_state=start))


def test_a_lora_gets_its_place_beside_endless_requests_with_another() -> None:
    """Those that come later do not pass it, and requests without a LoRA do."""
    clients = make_with_a_place()
    ask_with(clients, "first", LOUD, 20)
    clients.step()
    waiting = ask_with(clients, "second", LOUD, 10)
    for _ in range(30):
        ask_with(clients, "first", LOUD, 20)
        assert steps_until(clients, clients.send(ask(LOUD, 5))) <= 10
        if clients.heard[waiting].events:
            return
    raise AssertionError("it is never served")


@pytest.mark.parametrize("client", [LOUD, BATCH])
def test_a_place_is_taken_from_those_who_may_lose_their_slots(client: Client) -> None:
    clients = make_with_a_place()
    for _ in range(3):
        ask_with(clients, "first", client, 300)
    clients.send(ask(client, 300))
    for _ in range(20):
        clients.step()
    waiting = ask_with(clients, "second", QUIET, 5)
    assert steps_until(clients, waiting) <= 3
    assert clients.scheduler.counters.suspensions in (3, 4)  # the one without a LoRA may be among them
    clients.run(2000)
    assert all(heard.ended for heard in clients.heard.values())


def test_nobody_is_suspended_if_the_place_stays_in_use() -> None:
    clients = make_with_a_place()
    for _ in range(2):
        ask_with(clients, "first", LOUD, 300)
    for _ in range(20):
        clients.step()
    ask_with(clients, "first", LOUD, 300)  # has not run enough to be suspended
    clients.step()
    waiting = ask_with(clients, "second", QUIET, 5)
    clients.step()
    assert clients.scheduler.counters.suspensions == 0
    plain = clients.send(ask(QUIET, 5))  # passes it into the free slot
    assert steps_until(clients, plain) <= 3
    assert steps_until(clients, waiting) <= 20
    clients.run(2000)
    assert all(heard.ended for heard in clients.heard.values())
