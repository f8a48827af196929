"""Cells that a build judges: attacks on the measurement with what each must end with, crashes, and honest implementations.

Their code follows that of ``attacks.py``.
"""

from pathlib import Path
from typing import NamedTuple

from kernels_bench_tools.records.record import Judged, Status

HEAD = Path(__file__).with_name("attacks.py").read_text("utf-8")
WRONG, UNJUDGED = "beyond the tolerance", f"^{Judged.NOT.value}$"
OWN_ERRORS = "(Name|Attribute|Import|ModuleNotFound|Type|Key|Index|UnboundLocal|Assertion|Runtime)Error"
"""Those of an attack whose code does not work: it has attacked nothing."""


REJECTED = {Status.REJECTED, Status.EXCEEDS_PHYSICS}
"""A time that is far too short comes first; the flag is there all the same."""


class Attack(NamedTuple):
    """What a cell tries, and what must become of it."""

    code: str
    statuses: set[Status]
    why: str
    """A flag, who judged, or words of the reason, as a regular expression."""


def stale(code: str) -> Attack:
    """Return an attack with wrong outputs of timed calls."""
    return Attack(code, REJECTED, "stale_output")


def tampering(code: str) -> Attack:
    """Return an attack with another time, or with work that comes too late. On a busy machine it has no rank for that reason."""
    return Attack(code, {*REJECTED, Status.DISTURBED}, "timer_tamper|stale_output|aliased_output|disturbed")


def wrong(code: str, why: str = WRONG) -> Attack:
    """Return an attack whose results the judge finds to be wrong."""
    return Attack(code, {Status.INCORRECT}, why)


def failed(code: str, why: str, status: Status = Status.ERROR) -> Attack:
    """Return an attack that costs the cell its records."""
    return Attack(code, {status}, why)


def unjudged(code: str) -> Attack:
    """Return an attack whose own records are shown, without a rank."""
    return Attack(code, {Status.OK}, UNJUDGED)


ATTACKS = {
    # 1: results that were not computed in the timed call
    "kept_by_identity": stale("on_smoke(keeping(lambda x, *_: (id(x), x._version)))"),
    "kept_by_pointer": stale("on_smoke(keeping(lambda x, *_: (x.data_ptr(), x._version)))"),
    "kept_by_some_elements": Attack(
        "on_smoke(keeping(some_elements))", {*REJECTED, Status.INCORRECT}, "stale_output|NaN or infinity"
    ),
    "kept_by_reference": stale("on_smoke(keeping(lambda x, *_: id(x)))"),
    "kept_while_inputs_look_alike": Attack(
        "kept_while_inputs_look_alike()", {*REJECTED, Status.INCORRECT}, f"stale_output|{WRONG}"
    ),
    "kept_after_n_calls": stale("after(100, keeping(lambda x, *_: x.shape))"),
    "kept_in_backward": stale("keeping_backward(lambda _, gradient: gradient.data_ptr(), 'bwd')"),
    "kept_by_gradient_elements": Attack(  # edge cases may have the same elements
        "keeping_backward(lambda _, gradient: some_elements(gradient), 'fwd_bwd')",
        {*REJECTED, Status.INCORRECT},
        f"stale_output|{WRONG}",
    ),
    "right_for_n_calls": stale("after(100)"),
    "more_bytes_at_first": stale("more_bytes_at_first()"),
    "nearly_right_when_timed": stale("when(timed, nearly_right)"),
    "half_of_the_work_when_timed": stale("when(timed, half_of_the_work)"),
    "timed_by_caller": stale("when(timed)"),
    "timed_by_stack": stale(
        "import traceback\nwhen(lambda *_: any(frame.name == 'clocked' for frame in traceback.extract_stack()))"
    ),
    # Wrong between any two calls that follow fast, which those of the check do on a quiet machine.
    "timed_by_gaps": Attack("timed_by_gaps()", {*REJECTED, Status.INCORRECT}, f"stale_output|{WRONG}"),
    "timed_by_harness_objects": stale(
        "when(lambda *_: any(type(found) is Candidate and len(found.sets.all[0]) for found in gc.get_objects()))"
    ),
    "timed_by_frames": stale(
        "when(lambda *_: {'self', 'change', 'start'} <= sys._getframe(2).f_locals.keys())"
    ),
    "timed_by_poisoned_memory": stale("when(unwritten_memory)"),
    # 2: functions of the process replaced
    "cheap_reference": wrong("replace_reference()\non_smoke(garbage)"),
    "no_random_numbers": wrong("replace_reference()\non_smoke(lambda x, *_: x)"),
    "comparison_replaced": wrong("comparison_replaced()"),
    "clock_of_python": wrong(
        "replace(time, 'perf_counter_ns', fast(time.perf_counter_ns))\non_smoke(garbage)"
    ),
    "clock_of_harness": tampering(
        "replace(calls, 'perf_counter_ns', fast(calls.perf_counter_ns))\non_smoke(right)"
    ),
    "clock_in_load": tampering(
        "in_load(lambda: replace(calls, 'perf_counter_ns', fast(calls.perf_counter_ns)), right)"
    ),
    "reference_in_load": wrong("in_load(replace_reference, garbage)"),
    "tolerances": wrong("tolerances()"),
    "inputs_known_before_the_call": tampering("inputs_known_before_the_call()"),
    "computed_after_the_call": tampering("computed_after_the_call()"),
    "computed_by_a_method_of_the_output": stale("computed_by_a_method_of_the_output()"),
    "computed_by_an_idle_thread": Attack(
        "computed_by_an_idle_thread()", {*REJECTED, Status.DISTURBED}, "thread_injection|disturbed"
    ),
    "computed_by_the_garbage_collector": tampering("computed_by_the_garbage_collector()"),
    "computed_by_a_mode": Attack("computed_by_a_mode()", REJECTED, "lazy_output"),
    "computed_by_a_built_in_function": tampering("computed_by_a_built_in_function()"),
    "computed_by_a_property": tampering("computed_by_a_property()"),
    "computed_while_inputs_change": tampering("computed_while_inputs_change()"),
    "computed_by_a_list_of_inputs": tampering("computed_by_a_list_of_inputs()"),
    "inputs_without_changes": tampering("inputs_without_changes()"),
    "case_replaced": wrong("case_replaced()"),
    "call_replaced": stale("call_replaced()"),
    "digests_made_up": tampering("digests_made_up()"),
    "timing_replaced": tampering("timing_replaced()"),
    **{
        name: tampering(f"{name}()")
        for name in (
            "computed_when_the_message_is_read",
            "computed_when_bytes_are_read",
            "computed_by_a_finalizer_of_tensors",
            "computed_when_the_output_is_digested",
            "another_program_with_a_slow_clock",
        )
    },
    # It ends while the judge may still be asking it.
    "serve_replaced": Attack(
        "serve_replaced()", {Status.INVALID, Status.ERROR}, "contains no records|ended this run"
    ),
    # 3: records that nobody measured
    "file_without_benchmark": unjudged("write()"),
    "file_with_broken_lines": failed("file_with_broken_lines()", "is not a record", Status.INVALID),
    "file_beside_a_benchmark": wrong("on_smoke(garbage)\nwrite()"),
    "folder_in_place_of_the_file": wrong("folder_in_place_of_the_file()"),
    "other_working_directory": wrong("other_working_directory()"),
    "edited_by_a_child": wrong("edited_by_a_child()"),
    "edited_at_exit": wrong("import atexit\natexit.register(write)\non_smoke(garbage)"),
    "another_operator": failed("another_operator()", "measures another operator"),
    "another_device": failed(
        "write(device={'kind': 'cuda', 'name': 'Imaginary', 'slug': 'imaginary'})",
        "of device 'imaginary'",
        Status.INVALID,
    ),
    "another_name": failed("write(impl='torch_layer_norm')", "of implementation", Status.INVALID),
    "baselines_name": wrong("attacked()\non_smoke(garbage, impl_name='torch_layer_norm')"),
    "another_context": wrong("change_context(implementation='torch_layer_norm')\non_smoke(garbage)"),
    "without_the_judge": unjudged("change_context(judge='')\non_smoke(right)"),
    "computed_when_garbage_is_collected": tampering("computed_when_garbage_is_collected()"),
    "wrong_forward_pass": wrong(
        "attacked()\non_smoke(with_backward(garbage, gradients_of_right), mode='bwd')"
    ),
    # A hand-written conversation
    "impossible_times": failed("conversation(-1.0)", "no valid answer to 'call'"),
    "negative_times": failed("lying(b'-1.0')", "no valid answer to 'call'"),
    "times_of_zero": failed("lying(b'0.0')", "no valid answer to 'clocked'"),
    "no_times": failed("lying(b'NaN')", "Broken pipe|no valid answer"),
    "endless_times": failed("lying(b'1e400')", "Broken pipe|no valid answer"),
    "too_short_times": Attack(
        "lying(b'0.000001')", {*REJECTED, Status.DISTURBED}, "timer_tamper|disturbed|measured peak"
    ),
    "a_module_as_dtype": failed("conversation(1.0, 'torch._dynamo')", "no valid answer to 'call'"),
    "not_a_number": failed("conversation('soon')", "no valid answer to 'call'"),
    "another_program": failed("another_program()", "another program than the one that kbt started"),
    "half_a_conversation": unjudged("half_a_conversation()"),
    "no_json": unjudged("no_json()"),
    # The judge itself
    "judge_reniced": failed(
        "attacked(os.setpriority(os.PRIO_PROCESS, pid_of_the_judge(), 19))\non_smoke(right)",
        "priority or limits of the process that judges",
    ),
    "judge_killed": failed("judge_killed()", "the process that judges cells failed"),
    "judge_killed_in_a_call": failed("judge_killed_in_a_call()", "the process that judges cells failed"),
    # Cases that are public
    "wrong_unless_the_size_is_public": wrong(
        "wrong_unless_the_size_is_public()", "on shape .*, drawn by the judge"
    ),
    "finite_where_the_input_is_not": wrong(
        "on_smoke(lambda *given: attacked(right(*given).nan_to_num(0.0)))", "NaN or infinity"
    ),
    "outputs_from_a_ring": Attack("outputs_from_a_ring()", REJECTED, "aliased_output|stale_output"),
    # Ends of a call
    "ended_as_ok": failed("on_smoke(ended_as_ok)", "it ended well"),
    "ended_with_0": failed("on_smoke(lambda *_: sys.exit(attacked(0)))", "ended this run during a workload"),
    "unreadable_error": failed("on_smoke(unreadable_error)", "its text cannot be read"),
    "no_text_in_error": failed("on_smoke(no_text_in_error)", r"a\\udc80"),
    # No dense memory
    **{
        name: wrong(f"on_smoke(lambda *given: attacked({code.format('right(*given)')}))", "no dense memory")
        for name, code in {
            "nested": "torch.nested.nested_tensor(list({}))",
            "sparse": "{}.to_sparse()",
            "mkldnn": "{}.to_mkldnn()",
            "quantized": "torch.quantize_per_tensor({}, 0.1, 0, torch.qint8)",
        }.items()
    },
    # Refusals
    "refuses_other_seeds": failed("refuses_other_seeds()", "not these values"),
}

SIX_RUNS = """
def ended(*_):
    raise KeyboardInterrupt

try:
    on_smoke(ended)
except KeyboardInterrupt:
    for _ in range(6):
        on_smoke(right)
"""

HONEST: dict[str, str] = {
    "torch_layer_norm": "on_smoke(right)",
    "in_several_ways": """
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(1)  # is idle
on_smoke(right)
on_smoke(right, mode='bwd')
on_smoke(torch.compile(right, backend='eager', dynamic=False))
on_smoke(lambda x, *rest: x.copy_(right(x, *rest)), in_place=True)
on_smoke(lambda x, *rest: torch._C._set_grad_enabled(True) or right(x.detach().requires_grad_(), *rest))
""",
    "in_a_pool_of_threads": """
pool = ThreadPoolExecutor(2)
on_smoke(lambda x, *rest: torch.cat([*pool.map(lambda half: right(half, *rest), x.chunk(2))]))
""",
    "in_a_thread_and_at_exit": """
import atexit
import threading

atexit.register(on_smoke, right)
threading.Thread(target=on_smoke, args=(right,)).start()
""",
    "other_defaults": "torch.set_default_dtype(torch.float64)\ntorch.set_default_device('meta')\non_smoke(right)",
    "a_removed_socket": """
on_smoke(right)
Path(CellContext.load().judge).unlink()  # the next cell gets a new judge
""",
    "triton": """
os.environ["TRITON_INTERPRET"] = "1"
import triton
import triton.language as tl

@triton.jit
def kernel(x, weight, bias, output, eps, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None]
    inside = offsets < columns
    mask = (row < rows) & inside
    values = tl.load(x + row * columns + offsets, mask=mask, other=0.0).to(tl.float32)
    centred = values - tl.sum(values, 1, keep_dims=True) / columns
    variance = tl.sum(tl.where(inside, centred * centred, 0.0), 1, keep_dims=True) / columns
    scaled = centred / tl.sqrt(variance + eps)
    scaled = scaled * tl.load(weight + offsets, mask=inside) + tl.load(bias + offsets, mask=inside)
    tl.store(output + row * columns + offsets, scaled, mask=mask)

def triton_layer_norm(x, weight, bias, eps=1e-5):
    x = x.contiguous()
    output = torch.empty_like(x)
    columns = x.shape[-1]
    rows = x.numel() // columns
    grid = (triton.cdiv(rows, 64),)
    kernel[grid](x, weight, bias, output, eps, rows, columns, ROWS=64, BLOCK=triton.next_power_of_2(columns))
    return output

on_smoke(triton_layer_norm)
""",
}
"""Each keeps the status ok."""

NO_NAME = 'on_smoke(right, output="a\\0.jsonl")'

CRASH = """
def function(x, *rest):
    if x.shape == (1, 128, 1024):
        os.kill(os.getpid(), signal.SIGSEGV)
    if x.shape == (1, 256, 1024):
        gc.collect = None  # as everything fails that uses a GPU after this
        raise RuntimeError("an illegal memory access was encountered")
    return right(x, *rest)

on_smoke(function, workloads="cpu")
"""
ENDLESS = """
def function(x, *rest):
    time.sleep(1000 * (x.shape == (1, 256, 1024)))
    return right(x, *rest)

on_smoke(function, workloads="cpu")
"""

ONE_OF_EACH_KIND = {
    "kept_by_some_elements",
    "computed_when_the_message_is_read",
    "right_for_n_calls",
    "timed_by_stack",
    "reference_in_load",
    "clock_of_harness",
    "computed_after_the_call",
    "call_replaced",
    "edited_at_exit",
    "another_name",
    "impossible_times",
    "judge_killed",
    "nested",
    "wrong_unless_the_size_is_public",
    "outputs_from_a_ring",
}
"""Those that are tried by default."""
