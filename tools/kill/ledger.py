"""A ledger of acknowledged writes of persistent states, and a check that a server still has them after a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Write:
    """A request that changes named states.

    `before` maps each name to the digest of its state before the request; None = no state.
    """

    kind: str
    before: Mapping[str, str | None]
    may_remove: bool = False
    same_state: bool = False  # it moves one state: afterwards exactly one of the names has it


@dataclass
class Ledger:
    """The expected states: the digest of each name's last acknowledged state.

    A name has one writer, so at most one write of it is open, that is without an answer.
    """

    states: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # names whose removal was acknowledged
    acknowledged: Counter[str] = field(default_factory=Counter)  # writes by kind
    cut_off: Counter[str] = field(default_factory=Counter)  # writes without an answer, by kind and the state found
    checks: int = 0  # of states after a restart
    _open: list[Write] = field(default_factory=list)

    @contextmanager
    def write(
        self, kind: str, *names: str, may_remove: bool = False, same_state: bool = False
    ) -> Iterator[dict[str, str | None]]:
        """Record a write of `names` for the length of the block.

        The block puts the digests that the server answers into the yielded dict. If the block raises, the write stays
        open.
        """
        write = Write(kind, {name: self.states.get(name) for name in names}, may_remove, same_state)
        self._open.append(write)
        answered: dict[str, str | None] = {}
        yield answered
        self._open.remove(write)
        self.acknowledged[kind] += 1
        self._adopt(answered)

    def check(self, found: Mapping[str, str]) -> list[str]:
        """Compare `found`, the digests by name that a server has after a restart. Return a description of each fault.

        Writes without an answer may have been made or not; what is found of them is adopted.
        """
        faults = [fault for write in self._open for fault in self._check_open(write, found)]
        for write in self._open:
            self._adopt({name: found.get(name) for name in write.before})
        self._open.clear()
        self.checks += len(self.states) + len(self.gone)
        for name, digest in self.states.items():
            if name not in found:
                faults.append(f"{name!r} is lost")
            elif found[name] != digest:
                faults.append(f"{name!r} is {found[name]}, not {digest}")
        faults += [f"{name!r} was removed and is back" for name in sorted(self.gone & found.keys())]
        faults += [f"{name!r} was never made" for name in sorted(found.keys() - self.states.keys() - self.gone)]
        return faults

    def _check_open(self, write: Write, found: Mapping[str, str]) -> Iterator[str]:
        before = {digest for digest in write.before.values() if digest is not None}
        now = {name: found[name] for name in write.before if name in found}
        changed = any(now.get(name) != digest for name, digest in write.before.items())
        self.cut_off[f"{write.kind}: {'the new' if changed else 'the old'}"] += 1
        if write.same_state and (len(now) != 1 or set(now.values()) != before):
            yield f"{write.kind} of {dict(write.before)} left {now}"
        elif before and not now and not write.may_remove:
            yield f"{write.kind} of {dict(write.before)} left nothing"
        elif write.may_remove and now and set(now.values()) != before:
            yield f"{write.kind} of {dict(write.before)} left {now}"

    def _adopt(self, outcome: Mapping[str, str | None]) -> None:
        for name, digest in outcome.items():
            if digest is None:
                self.states.pop(name, None)
                self.gone.add(name)
            else:
                self.states[name] = digest
                self.gone.discard(name)
