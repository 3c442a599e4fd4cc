"""What holds of a scheduler, its slots and its sequences between two steps."""

from __future__ import annotations

from rnn_engine.scheduler import Scheduler
from rnn_engine.scheduler.phases import AwaitMask, AwaitSequences, Closing, Decode, DeviceDecode, Draft, Given, Prompt
from rnn_engine.scheduler.sequence import SamplingSequence, SlotSequence
from rnn_engine.scheduler.slots import Slots


def check_scheduler(scheduler: Scheduler) -> None:
    """Raise AssertionError if the books of the scheduler do not agree."""
    assert len(scheduler._steps) <= 2
    _check_slots(scheduler._slots)


def count_late(scheduler: Scheduler) -> int:
    """Return the number of requests that take part in no step until the masks of their next tokens are computed."""
    return len(scheduler._slots._late)


def count_leads(scheduler: Scheduler) -> int:
    """Return the number of requests whose prompts others wait for."""
    return len(scheduler._prefixes._flights)


def _check_slots(slots: Slots) -> None:
    held = [sequence.slot for live in slots.live.values() for sequence in live.sequences]
    assert sorted(held) == sorted(slots._sequences)
    assert not set(held) & set(slots._free)
    assert slots.held.total() == len(held)
    assert slots.num_background == sum(count for client, count in slots.held.items() if client.is_background)
    assert slots._late == {key for key, live in slots.live.items() if live.awaits_mask}
    assert slots._paused | slots._leaving <= slots.live.keys()
    for sequence in slots._sequences.values():
        _check_sequence(sequence)


def _check_sequence(sequence: SlotSequence) -> None:
    assert not sequence.released
    assert sequence.draws is None
    assert 0 <= sequence.position <= sequence.submitted
    assert (sequence.position < sequence.submitted) == (len(sequence.in_flight) > 0)
    assert len(sequence.in_flight) <= 2
    assert len(sequence.generated) <= sequence.request.max_tokens
    _check_phase(sequence)


def _check_phase(sequence: SlotSequence) -> None:
    match sequence.phase:
        case Prompt():
            assert sequence.submitted < sequence.prompt_length
            assert len(sequence.generated) == 0
        case AwaitSequences():
            assert not sequence.in_flight
            assert sequence.row is not None
            assert sequence.position == sequence.end
        case DeviceDecode() as phase:
            assert (phase.num_drawing > 0) == (len(sequence.in_flight) > 0)
            assert sequence.in_flight or sequence.submitted == sequence.end - 1
        case Decode():
            assert sequence.submitted == sequence.end - (0 if sequence.in_flight else 1)
        case Given() as phase:
            assert sequence.position < phase._end <= sequence.end
            if isinstance(phase, Closing):
                assert isinstance(sequence, SamplingSequence)
                assert sequence.answer.ending is not None
        case AwaitMask():
            assert not sequence.in_flight
            assert sequence.position == sequence.end
        case Draft() as phase:
            assert list(sequence.in_flight) == [phase]
        case _:
            raise AssertionError("a sequence that is done holds no slot")
