"""Judge one implementation on one workload: have it called and timed, check its outputs; exceptions become its status.

The candidate is in this process, or in another one from which it is reached through :mod:`.judge.remote`.
"""

from __future__ import annotations

import gc
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.correctness.check import (
    LEAST_SLICES,
    SHARE_OF_SLICES,
    Case,
    ChangedInputsError,
    Correctness,
    changed_inputs,
    check_again,
    check_calls,
    require_usual,
    without_memory,
)
from kernels_bench_tools.measure.correctness.compare import require_alike, require_correct, some_slices
from kernels_bench_tools.measure.correctness.errors import WrongResultError
from kernels_bench_tools.measure.judge.batches import Batches
from kernels_bench_tools.measure.judge.candidate import PROCESS_SEEDS, Candidate
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges, InputSets
from kernels_bench_tools.measure.judge.remote import RemoteCandidate
from kernels_bench_tools.measure.modes import changing, in_mode
from kernels_bench_tools.measure.operator import (
    CallError,
    Inputs,
    Operator,
    Workload,
    failed_status,
    failure_of,
    one_slice,
    size_in_bytes,
    tensors_of,
)
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.timing.caches import calls_at_once, input_set_count
from kernels_bench_tools.measure.timing.cpu import cpu_pressure
from kernels_bench_tools.measure.timing.measure import (
    SealedTime,
    TimingResult,
    measure_calls,
    measure_sustained,
    sealed,
)
from kernels_bench_tools.measure.timing.queue import HostReplay, Replay
from kernels_bench_tools.records.record import (
    REJECTING,
    Failure,
    Flag,
    Quantities,
    Status,
    Work,
)
from kernels_bench_tools.records.request import USUAL_REQUEST, Request
from kernels_bench_tools.records.roofline import LAUNCH_FACTOR, RooflineResult

SEALED_SHARE, GAP_MS = 0.95, 0.0015
"""A GPU's time is at least this share of that of a sealed call, less so much for the gap before each kernel, whose code is in no
cache then, and once more before the first: up to 1.41 and 2.84 us were seen."""
HOST_SHARE, HOST_MS = 0.85, 0.02
"""The same of a CPU's."""
LEAST_SEALED = 1
"""Slices of an output of a sealed call that are compared at least: there are six of these calls."""
LAUNCH_MS, LEAST_KERNEL_MS = 0.002, 0.0005
"""A kernel takes at least so long to be queued and to run, else it is none."""
STEADY = 1.05
"""Queues that differ by a larger factor are disturbed, as by another process on the device."""
SEALED_AGAIN = 2
"""How often the sealed calls of a row that contradicts them are timed again: the shortest time counts."""
LAST_CHANGES = 16
"""Of inputs before a timed call that failed: are these to blame?"""
MAX_PRESSURE = 0.2
"""Share of the time in which some process waits for a core: more is a busy machine."""


@dataclass(kw_only=True)
class Trial:
    """Result of one implementation on one workload. What was not reached is None."""

    status: Status
    seed: int = 0
    """Of the inputs that are checked, and of the first input set that is timed."""
    failure: Failure | None = None
    compile_ms: float | None = None
    """The first call."""
    second_ms: float | None = None
    correctness: Correctness | None = None
    timing: TimingResult | None = None
    roofline: RooflineResult | None = None
    peak_bytes: int | None = None
    work: Work | None = None
    flags: list[Flag] = field(default_factory=list)

    def add(self, flags: Sequence[Flag]) -> None:
        self.flags += [flag for flag in dict.fromkeys(flags) if flag not in self.flags]


def run_trial(
    operator: Operator,
    workload: Workload,
    number: int,
    candidate: Candidate | RemoteCandidate,
    session: BenchmarkSession,
    request: Request = USUAL_REQUEST,
    *,
    process: int = 0,
    kernels: str = "",
) -> Trial:
    """Call, check and time a candidate on one workload; an exception becomes the trial's status.

    An implementation that is incorrect or rejected is timed too: its latency is shown without a rank. The operator is
    the forward one, and ``number`` that of the workload among the candidate's. Each ``process`` has other inputs.
    ``kernels`` is a regular expression that the name of some launched kernel must match; empty for any.
    """
    workload = replace(workload, seed=workload.seed + PROCESS_SEEDS * process)
    trial = Trial(status=Status.OK, seed=workload.seed)
    mode = request.mode
    try:
        with torch.no_grad():
            of_mode = in_mode(operator, mode).for_workload(workload)
            # In untimed calls, the outputs of the forward pass before a backward pass are checked, too.
            checked = in_mode(operator, "fwd_bwd" if mode == "bwd" else mode).for_workload(workload)
            positions = changing(operator.for_workload(workload), mode)
            for entries in (False, True):
                trial = Trial(status=Status.OK, seed=trial.seed, flags=list(dict.fromkeys(of_mode.declared)))
                candidate.start(number, process)
                attempt = _Attempt(
                    trial=trial,
                    operator=of_mode,
                    checked=checked,
                    workload=workload,
                    candidate=candidate,
                    session=session,
                    positions=positions,
                    request=request,
                    kernels=kernels,
                    thorough=process == 0,
                    entries=entries,
                )
                try:
                    attempt.run()
                    break
                except ChangedInputsError:
                    given = of_mode.made_inputs(workload, session.device, trial.seed)
                    several = any(given[position].shape[:1].numel() > 1 for position in positions(given))
                    if entries or of_mode.renew or not several:
                        raise
    except ConnectionError:
        raise
    except Exception as error:
        trial = _failed(trial, error)
    gc.collect()
    if session.device.startswith("cuda"):
        torch.cuda.empty_cache()
    return trial


def _failed(trial: Trial, error: Exception) -> Trial:
    """Return the trial that an exception has ended, without what only one that ran to its end has."""
    status, failure = failed_status(error), failure_of(error)
    if status is Status.UNSUPPORTED and trial.compile_ms is not None:
        # It accepted the size: this is about the values.
        status = Status.ERROR
        message = f"refused other values of a size that it accepts: {failure.msg}"
        failure = Failure(type="Refused", msg=message)
    if status is Status.ERROR and not isinstance(error, CallError):
        traceback.print_exc(file=sys.stderr)
    kept = {name: getattr(trial, name) for name in ("seed", "compile_ms", "second_ms", "work")}
    return Trial(status=status, failure=failure, **kept)


def decide(
    wrong: str, above_roofline: str, flags: Sequence[Flag], reasons: Mapping[Flag, str]
) -> tuple[Status, Failure | None]:
    """Return the status of an implementation that ran, and why it is not ``ok``; reasons are empty if there is none."""
    if wrong:
        return Status.INCORRECT, Failure(type="WrongResult", msg=wrong)
    if above_roofline and Flag.DISTURBED not in flags:
        return Status.EXCEEDS_PHYSICS, Failure(type="ExceedsPhysics", msg=above_roofline)
    rejecting = [flag for flag in flags if flag in REJECTING]
    if rejecting:
        message = "; ".join(
            f"{flag.value}: {reasons[flag]}" if flag in reasons else flag.value for flag in rejecting
        )
        return Status.REJECTED, Failure(type="Rejected", msg=message[:500])
    return Status.OK, None


@dataclass(kw_only=True)
class _Attempt:
    """A trial with inputs that change in one way between timed calls; its steps fill the trial."""

    trial: Trial
    operator: Operator
    """In the mode that is timed."""
    checked: Operator
    """In the mode of untimed calls."""
    workload: Workload
    candidate: Candidate | RemoteCandidate
    session: BenchmarkSession
    positions: Callable[[Inputs], Sequence[int]]
    """Returns which inputs change between timed calls."""
    request: Request
    kernels: str
    thorough: bool
    """Whether edge cases and drawn shapes are checked: they are the same in all processes, and each shape is compiled."""
    entries: bool
    """Whether all inputs that change keep the elements of entries, see :meth:`.InputChanges.of`."""
    turn: int = field(default_factory=partial(secrets.randbelow, 2**16))
    """Decides which numbers, such as eps, come with difficult values before and which after the timed calls."""
    reasons: dict[Flag, str] = field(default_factory=dict)
    """Why the trial has flags, as far as there are reasons."""

    def run(self) -> None:
        """Check untimed calls, time others, compare outputs of those, and decide on the status."""
        inputs = self.operator.made_inputs(self.workload, self.session.device, self.trial.seed)
        like = self._first_calls(inputs)
        self._check_calls(inputs)
        self.reasons = self.candidate.inspect()
        changes = InputChanges.of(self.operator, inputs, self.positions(inputs), entries=self.entries)
        batches = self._make_batches(inputs, changes, like)
        self._time(batches, changes)
        self._judge_timed(batches, changes, like)
        self._decide()

    def _first_calls(self, inputs: Inputs) -> list[Tensor]:
        """Time the first call, which compiles, and the second; return what timed outputs are like, without memory."""
        trial = self.trial
        first = self.candidate.call(Case(trial.seed))
        trial.compile_ms = first.ms
        outputs = tensors_of(first.output)[len(self.checked.outputs) - len(self.operator.outputs) :]
        trial.work = self.operator.work(inputs, outputs)
        trial.second_ms = self.candidate.call(Case(trial.seed)).ms
        return without_memory(outputs)

    def _call(self, case: Case, given: Inputs) -> tuple[Any, bool]:
        called = self.candidate.call(case)
        return called.output, changed_inputs(self.operator, called.arguments, given)

    def _check_calls(self, inputs: Inputs) -> None:
        own = self.checked, self.workload, self._call, inputs, self.session.smaller_results
        self.trial.correctness = found = check_calls(*own, thorough=self.thorough, turn=self.turn)
        self.trial.add(found.flags)

    def _make_batches(self, inputs: Inputs, changes: InputChanges, like: Sequence[Tensor]) -> Batches:
        """Return batches of calls on as many sets of inputs as the caches and the memory of the device ask for."""
        assert self.trial.work
        rotated = changes.positions if changes.rotate else ()
        copies = [one for n, one in enumerate(inputs) if n in rotated or self.operator.may_overwrite(n)]
        held = sum(map(size_in_bytes, [*inputs, *copies]))
        sets = input_set_count(self.trial.work.bytes_moved, self.session.device, held)
        most = calls_at_once(sum(map(size_in_bytes, like)), self.session.device)
        replay: Replay | HostReplay | None = None
        if self.session.separate and self.session.device == "cpu" and sys.platform == "linux":
            tensors = (n for n, one in enumerate(inputs) if isinstance(one, Tensor))
            overwritten = list(filter(self.operator.may_overwrite, tensors))
            own = {*changes.positions, *overwritten}
            own_sets = [
                tuple(one.clone() if n in own else one for n, one in enumerate(inputs)) for _ in range(sets)
            ]
            # Not zeros: a page that nothing was written to costs nothing to read.
            outputs = [torch.ones(one.shape, dtype=one.dtype) for one in like]
            replay = HostReplay(
                InputSets(own_sets, changes, overwritten=overwritten), outputs, self.candidate.pid
            )
        elif self.session.separate and self.session.device.startswith("cuda"):
            two, made = (inputs, self._given(1)) if sets > 1 else (inputs, inputs), changes.copies(inputs)
            outputs = [torch.empty_like(one, device=self.session.device) for one in like]
            replay = Replay(changes.given(*two, made), made, outputs)
        return Batches(self.candidate, sets, keep=_own, most=most, replay=replay)

    def _time(self, batches: Batches, changes: InputChanges) -> None:
        """Time the calls; if that fails because of inputs that changed, that is a ``ChangedInputsError``."""
        device = self.session.device
        try:
            self.candidate.prepare(len(batches.changes), self.entries)
            self.trial.timing = measure_calls(
                batches,
                device,
                clocks=self.session.clocks,
                processes=self._processes,
                seal=_seal(batches),
            )
            if device == "cpu":
                # A result that was kept for a set of inputs is wrong after a change; few calls use no set twice.
                batches.clock(1)
        except Exception as error:
            if failed_status(error) is Status.ERROR:
                self._blame_changes(batches, changes)
            raise

    def _blame_changes(self, batches: Batches, changes: InputChanges) -> None:
        """Raise a ``ChangedInputsError`` if some last change of a set made values that the operator does not take."""
        counts = [(which, n) for which, own in enumerate(batches.changes) for n in range(len(own), 0, -1)]
        for which, n in counts[:LAST_CHANGES]:
            before, same = (self._given(which) for _ in range(2))
            require_usual(self.operator, before, changes.apply(same, batches.changes[which][:n]))

    def _judge_timed(self, batches: Batches, changes: InputChanges, like: Sequence[Tensor]) -> None:
        """Compare outputs and times of the timed calls, and note the reasons for what is wrong with them."""
        trial, found = self.trial, self.trial.timing
        assert found
        assert trial.correctness
        trial.add(found.flags)
        late = _exceeds_clock(found, batches, seal) if (seal := _seal(batches)) else {}
        self.reasons |= self.candidate.finish()
        if self.request.sustained:  # after all that is about the headline
            own = found.latency.p50, self.session.clocks, self._processes
            quantities = found.quantities or Quantities()
            quantities.sustained = measure_sustained(batches, self.session.device, *own)
            trial.timing = found = replace(found, quantities=quantities)
        timed = judge_timed_calls(self.operator, self.candidate, batches, self._given, changes, like)
        if Flag.ALIASED_OUTPUT in self.reasons:  # later calls have overwritten its outputs
            timed.pop(Flag.STALE_OUTPUT, None)
        if trial.correctness.ok:  # else outputs of timed calls are known to be wrong
            self.reasons = timed | self.reasons
        if trial.correctness.ok and not self.reasons:
            of = self.checked, self.workload, self._call, self.session.device
            check_again(*of, trial.correctness, self.turn + 1)
            trial.add(trial.correctness.flags)
        if Flag.DISTURBED not in found.flags:
            self.reasons |= late
            if note := late.get(Flag.DISTURBED):
                trial.timing = replace(found, note=note)

    def _decide(self) -> None:
        """Add the flags that follow from reasons, times and kernels, and decide on the status."""
        trial, found = self.trial, self.trial.timing
        assert found
        assert trial.work
        assert trial.correctness
        trial.add(list(self.reasons))
        if found.latency.p50 < LAUNCH_FACTOR * self.session.null_ms:
            trial.add([Flag.NEAR_FLOOR])
        names = [kernel.name for kernel in found.kernels]
        if self.kernels and names and not any(re.search(self.kernels, name) for name in names):
            trial.add([Flag.FALLBACK])
        trial.roofline = self.session.assess(trial.work, found.latency.p50, self.workload.dtype)
        reasons = self.reasons | {
            Flag.STREAM_ESCAPE: found.note,
            Flag.TIMER_TAMPER: self.reasons.get(Flag.TIMER_TAMPER, found.note),
            Flag.FALLBACK: f"no kernel matches {self.kernels!r}",
        }
        wrong, above = trial.correctness.reason, trial.roofline.above
        trial.status, trial.failure = decide(wrong, above, trial.flags, reasons)
        trial.peak_bytes = self.candidate.peak_bytes()

    @property
    def _processes(self) -> int:
        """How many processes of ours use the device."""
        return 2 if self.session.separate else 1

    def _given(self, which: int) -> Inputs:
        """Make the set of inputs with this number, before any change."""
        return self.operator.made_inputs(self.workload, self.session.device, self.trial.seed + which)


def _seal(batches: Batches) -> SealedTime | None:
    """Return what times sealed calls, on a GPU of another process."""
    if (replay := batches.replay) is None:
        return None
    return lambda kernels: sealed(batches, kernels, replay.without_calls)


def _own(output: Any) -> Any:
    """Return a copy of an output, whose memory may be used again."""
    if issubclass(type(output), tuple | list):
        return tuple(map(_own, tensors_of(output)))
    return output.clone() if type(output) is Tensor else output


def judge_timed_calls(
    operator: Operator,
    candidate: Candidate | RemoteCandidate,
    batches: Batches,
    given: Callable[[int], Inputs],
    changes: InputChanges,
    like: Sequence[Tensor],
) -> dict[Flag, str]:
    """Compare slices of the outputs of timed calls that were taken with the reference of exactly their inputs.

    ``given`` makes the set of inputs with a number; ``like`` is like the first output, from which the work was counted. Returns
    ``stale_output`` if one is wrong, ``input_mutated`` if a call changed inputs, with their reasons.
    """
    reasons: dict[Flag, str] = {}
    picked = sorted(batches.picked, key=lambda one: (one.which, one.changes))
    for which, group in groupby(picked, key=lambda one: one.which):
        original = inputs = given(which)
        numbers, done = batches.changes[which], 0
        for one in group:
            if one.call and isinstance(batches.replay, Replay) and changes.renew is None:
                inputs = batches.replay.inputs(one.call)
            elif one.changes > done:
                inputs = changes.apply(original, numbers[done : one.changes])
                done = one.changes
            try:
                if not one.whole:
                    raise WrongResultError("it was another one when the call had ended")
                if operator.slices is not one_slice:  # else shapes are compared, which may depend on values
                    require_alike(one.output, like)
                least = LEAST_SEALED if one.call else LEAST_SLICES
                only = some_slices(operator, inputs, least=least, share=SHARE_OF_SLICES)
                require_correct(one.output, operator, inputs, only)
            except (WrongResultError, OperatorError) as wrong:
                if Flag.STALE_OUTPUT not in reasons:
                    require_usual(operator, given(which), inputs)
                if isinstance(wrong, OperatorError):
                    raise
                reasons.setdefault(
                    Flag.STALE_OUTPUT,
                    f"the output of a timed call is wrong, those of untimed calls right: {wrong}",
                )
        if done < len(numbers):
            inputs = changes.apply(original, numbers[done:])
        if changed_inputs(operator, candidate.arguments(which), inputs):
            reasons[Flag.INPUT_MUTATED] = "a timed call changed its inputs"
    # Later calls have then changed what earlier ones were given.
    if Flag.INPUT_MUTATED in reasons:
        reasons.pop(Flag.STALE_OUTPUT, None)
    return reasons


def _exceeds_clock(found: TimingResult, batches: Batches, seal: SealedTime) -> dict[Flag, str]:
    """Return ``timer_tamper`` if a GPU's times are too short for what this process's clock measured, with the reason.

    What contradicts them is timed again. If other processes use the device, or wait for a core, that is ``disturbed``.
    """
    if found.quantities is None:
        return {}
    on_gpu = isinstance(batches.replay, Replay)
    if (queued := found.quantities.sealed) is None and not on_gpu:
        return {Flag.DISTURBED: "no queue of sealed calls was complete in time"}
    if queued is None:
        return {Flag.UNSEALED: "its calls wait for the device, or have too many inputs or outputs"}
    start, waited = time.perf_counter(), cpu_pressure() or 0.0
    reported = found.latency.p50
    kernels = sum(one.count for one in found.kernels if one.ms >= LEAST_KERNEL_MS * one.count)
    for left in range(SEALED_AGAIN, -1, -1):
        gaps_ms = GAP_MS * (1 + min(kernels, min(batches.queuing_ms) / LAUNCH_MS)) if on_gpu else HOST_MS
        fastest = queued.p50 if queued.ci_low is None else queued.ci_low
        if reported >= (SEALED_SHARE if on_gpu else HOST_SHARE) * fastest - gaps_ms:
            return {}
        if left and (again := seal(kernels)) and again.p50 < queued.p50:
            found.quantities.sealed = queued = again
    share = ((cpu_pressure() or 0.0) - waited) / (time.perf_counter() - start)
    late = f"a sealed call took {fastest:.4g} ms by the judge's clock, and {reported:.4g} ms were reported"
    why = ""
    if Flag.NEIGHBOUR in found.flags:
        why = "another process used the device"
    elif share > MAX_PRESSURE:
        why = f"processes waited {share:.0%} of the time for a core"
    elif not (queued.ci_high or queued.p50) <= STEADY * (queued.ci_low or 0.0):
        why = "other queues took another time, or were too few"
    return {Flag.DISTURBED: f"{late}, but {why}"} if why else {Flag.TIMER_TAMPER: late}
