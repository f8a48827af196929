"""Decides how many calls are timed and with which inputs, and takes the outputs of random ones for comparison."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels_bench_tools.measure.judge.candidate import Method, TimedCalls, TimerState
from kernels_bench_tools.measure.judge.changing_inputs import new_change
from kernels_bench_tools.measure.operator import CallError
from kernels_bench_tools.measure.timing.queue import HostReplay, Replay, SealedCall
from kernels_bench_tools.measure.timing.sampling import Call
from kernels_bench_tools.measure.timing.seam import NoQueueError
from kernels_bench_tools.records.record import Failure, Status

if TYPE_CHECKING:
    from kernels_bench_tools.measure.judge.remote import RemoteCandidate

PICKED = 6
"""Random calls of the headline's samples whose outputs are compared. An implementation that is wrong in half of the
calls, the least that changes a median, passes on one workload in one process of 64."""
PICKED_BESIDE_SEALED = 2
"""The same where there are sealed calls, too, whose outputs are compared."""


@dataclass(frozen=True)
class Picked:
    which: int
    """Number of the set of inputs."""
    changes: int
    """How often the set had changed."""
    output: Any
    call: SealedCall | None = None
    """Of a sealed call: what its inputs were made from."""
    whole: bool = True
    """Whether a sealed call's output is what was digested as soon as it had returned."""


class Batches:
    """Times calls that rotate through ``sets`` sets of inputs, and knows what each call was given. ``most`` outputs fit into memory.

    ``replay`` is the judge's side of sealed calls, and makes the inputs of those on a GPU again.
    """

    def __init__(
        self,
        calls: TimedCalls | RemoteCandidate,
        sets: int,
        *,
        keep: Callable[[Any], Any] = lambda output: output,
        most: int = PICKED,
        replay: Replay | HostReplay | None = None,
    ) -> None:
        self.replay = replay
        self.calls, self._keep = calls, keep
        self._most = min(PICKED_BESIDE_SEALED if replay else PICKED, max(2, most))
        self.changes: list[list[int]] = [[] for _ in range(sets)]
        """The changes of each set, in order."""
        self.queuing_ms: list[float] = []
        """Of sealed queues: milliseconds that a call needs to be queued, by this process's clock."""
        self.escaped: list[str] = []
        self.clock_mhz = 0
        self._turn = 0
        self._states: dict[bool, TimerState] = {}
        self._random: list[Picked] = []
        self._others: list[Picked] = []
        self._seen, self._sampling = 0, False

    @property
    def picked(self) -> list[Picked]:
        return [*self._random, *self._others]

    def state(self, *, hot: bool = False) -> TimerState:
        if hot not in self._states:
            self._states[hot] = self.calls.open(hot=hot)
        return self._states[hot]

    def begin_sample(self, *, keep: bool = False) -> None:
        """Take outputs of what follows; forget those taken so far, unless ``keep``: either sample may be the one that counts."""
        if keep:
            self._others += self._random
        self._random.clear()
        self._seen, self._sampling = 0, True

    def end_sample(self) -> None:
        self._sampling = False

    def draw(self, method: Method) -> Callable[[int], list[Call]]:
        return self._alone if method is Method.CLOCK else partial(self._cold, method)

    def _alone(self, count: int) -> list[Call]:
        found: list[Call] = []
        for _ in range(count):
            change = new_change()
            where = self._given(change)
            if not self.state().repeatable:
                self.calls.make_ahead(1)  # before their process knows how they change
            found.append(Call(self.calls.clocked(change)))
            if self._sampling:
                self._pick({0: where})
        return found

    def _cold(self, method: Method, count: int) -> list[Call]:
        found: list[Call] = []
        while len(found) < count:
            changes = [new_change() for _ in range(min(count - len(found), self.state().at_once))]
            if not self.state().repeatable:
                self.calls.make_ahead(len(changes))  # before their process knows how they change
            where = [self._given(change) for change in changes]  # also of a batch that the profiler loses
            timed = self.calls.batch(method, changes)
            if len(timed.calls) != len(changes):
                message = f"its process timed {len(timed.calls)} calls instead of {len(changes)}"
                raise CallError(Status.ERROR, Failure(type="Invalid", msg=message))
            self.escaped, self.clock_mhz = timed.escaped, timed.clock_mhz or self.clock_mhz
            if self._sampling:
                self._pick(dict(enumerate(where)))
            found += timed.calls
        return found

    def hot(self, method: Method, count: int, device_ms: float = 0.0, kernels: int = 0) -> list[Call]:
        """Time this many calls with the same inputs."""
        self.state(hot=True)
        changes = [new_change(), *[0] * (count - 1)]
        self.changes[0].append(changes[0])
        timed = self.calls.batch(method, changes, device_ms, kernels)
        if method is not Method.HOST_SUBMIT:
            number = random.SystemRandom().randrange(len(timed.calls))
            self._others.append(self._take(0, len(self.changes[0]), number))
        return timed.calls

    def sustained(self, count: int, queues: int) -> list[Call]:
        """Time queues of this many calls of a GPU without a pause, rotating through sets that change before each: their means."""
        sets = len(self.changes)
        found: list[Call] = []
        for _ in range(queues):
            changes = [new_change() for _ in range(sets)]
            for own, change in zip(self.changes, changes, strict=True):
                own.append(change)
            timed = self.calls.batch(Method.SUSTAINED, [*changes, *[0] * count])
            number = random.SystemRandom().randrange(count)
            which = (self._turn + number) % sets
            self._turn += count
            if self._sampling:
                self._pick({number: (which, len(self.changes[which]))})
            found += timed.calls
        return found

    def clock(self, count: int) -> list[Call]:
        """Time this many calls of the first set, each alone, by the clock of their process."""
        calls = []
        taken = random.SystemRandom().randrange(count)
        for number in range(count):
            change = new_change()
            where = self._given(change, hot=True)
            self.calls.make_ahead(1, hot=True)  # frees what the call before got, too
            self.calls.change_next(change)
            ms = self.calls.clocked(0)
            if number == taken:
                self._others.append(self._take(*where, 0))
            calls.append(Call(ms))
        return calls

    def queue(self, count: int, most_seconds: float, *, take: int = 0) -> float | None:
        """Return the milliseconds by this process's clock of a queue of sealed calls, on a GPU with the first set.

        None if they cannot or did not wait, or take longer than this. ``take``: of how many calls, chosen after they have
        ended, the output is taken. On a CPU it is at most one, which is made once more: the output must have the same digest.
        """
        assert self.replay
        change, on_gpu = new_change(), isinstance(self.replay, Replay)
        which = [0 if on_gpu else (self._turn + number) % len(self.changes) for number in range(count)]
        if on_gpu and not self.state().repeatable:
            self.calls.make_ahead(count, hot=True)
        seal = self.calls.seal()
        seal.begin()
        try:
            self.calls.queue(change, count)
            ms = seal.time(most_seconds, None if on_gpu else self.calls.answered)
            calls = seal.calls(count)
            if on_gpu:
                self.calls.answered()
        except NoQueueError:  # before anything was changed
            return None
        if on_gpu:
            self.changes[0].append(change)
        else:
            self._turn += count
            for number, call in zip(which, calls, strict=True):
                self.changes[number].append(call.key)
        if ms is None:
            return None
        self.queuing_ms.append(1e3 * seal.queuing_seconds / count)
        for number in sorted(random.SystemRandom().sample(range(count), min(take, count if on_gpu else 1))):
            call, own = calls[number], self.changes[which[number]]
            output = self.calls.output(number) if on_gpu else self.calls.again(number)
            if not on_gpu:
                del own[own.index(call.key) + 1 :]  # was undone
            whole = self.replay.is_whole(call, output)
            self._others.append(Picked(which[number], len(own), self._keep(output), call, whole))
        return ms

    def _given(self, change: int, *, hot: bool = False) -> tuple[int, int]:
        """Note the change of the next set in turn; return the set's number and how often it has changed."""
        which = 0 if hot else self._turn % len(self.changes)
        self._turn += not hot
        self.changes[which].append(change)
        return which, len(self.changes[which])

    def _pick(self, where: Mapping[int, tuple[int, int]]) -> None:
        """Take outputs of a batch, of calls by number, so that all of the sample have the same chance to be among those taken."""
        most, choice = self._most, random.SystemRandom()
        chosen: dict[int, int] = {}
        for number in where:
            place = self._seen if self._seen < most else choice.randrange(self._seen + 1)
            self._seen += 1
            if place < most:
                chosen[place] = number
        for place, number in sorted(chosen.items()):
            self._random[place : place + 1] = [self._take(*where[number], number)]

    def _take(self, which: int, changes: int, number: int) -> Picked:
        return Picked(which, changes, self._keep(self.calls.output(number)))
