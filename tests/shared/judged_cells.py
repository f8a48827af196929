"""Cells that a build judges: attacks on the measurement, crashes, and honest implementations.

Each is the code of a cell after ``HEAD``.
"""

HEAD = """
import gc, json, os, signal, socket, subprocess, sys, time
from pathlib import Path

import torch
from torch import Tensor

import kernels_bench_tools
from kernels_bench_tools import run_benchmark

exact = torch.nn.functional.layer_norm


def right(x, weight, bias):
    return exact(x, x.shape[-1:], weight, bias, 1e-5)


def garbage(x, weight, bias):
    return torch.zeros_like(x)


def gradients_of_right(saved, gradient):
    leaves = [value.detach().requires_grad_() for value in saved]
    with torch.enable_grad():
        return torch.autograd.grad(right(*leaves), leaves, gradient)


def with_backward(forward, backward):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, *inputs):
            context.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(context, gradient):
            return backward(context.saved_tensors, gradient)

    return Function.apply


def batch_around(frame):
    while frame and "changes" not in frame.f_locals:
        frame = frame.f_back
    return frame


def output_ahead(sets, turn, change):
    inputs = tuple(value.clone() for value in sets._sets[turn % len(sets._sets)])
    kernels_bench_tools.measure.changing_inputs.change(inputs, [0], change)
    return right(*inputs)


def on_smoke(function, **options):
    return run_benchmark("layer_norm", function, **options)


def record(**changes):
    device = json.loads(DEVICE)
    latency = {"p10": 1e-6, "p50": 1e-6, "p90": 1e-6, "mean": 1e-6, "iqr": 0, "reps": 90, "raw_times": [1e-6] * 90}
    return {
        "ts": "2030-01-01T00:00:00Z", "run": "forged", "impl": "IMPLEMENTATION", "op": "layer_norm", "schema": 1,
        "wl": {"name": "smoke_S32_D256", "batch": 2, "seq_len": 32, "hidden_dim": 256, "dtype": "float32"},
        "device": device, "lat_ms": latency, "status": "ok", "ok": True, "judged": "separately",
    } | changes


def change_context(**changes):
    context = json.loads(Path(os.environ["KBT_CONTEXT"]).read_text()) | changes
    Path("context.json").write_text(json.dumps(context))
    os.environ["KBT_CONTEXT"] = str(Path("context.json").resolve())


def write(path="layer_norm.jsonl", **changes):
    Path(path).write_text(json.dumps(record(**changes)) + chr(10))
"""

KEEPING = """
kept, held = {}, []  # held, so that no other tensor gets its identity or address

def keeping(x, weight, bias):
    key = KEY
    if key not in kept:
        held.append(x)
        kept[key] = right(x, weight, bias)
    return kept[key].clone()

on_smoke(keeping)
"""

KEEPING_BACKWARD = """
kept, held = {}, []

def keeping(saved, gradient):
    key = KEY
    if key not in kept:
        held.append(gradient)
        kept[key] = gradients_of_right(saved, gradient)
    return tuple(value.clone() for value in kept[key])

on_smoke(with_backward(right, keeping), mode="MODE")
"""

TIMED_ONLY = """
def timed_only(x, weight, bias):
    return garbage(x, weight, bias) if TIMED else right(x, weight, bias)

on_smoke(timed_only)
"""

REPLACED = """
REPLACE
on_smoke(FUNCTION)
"""

FAST_CLOCK = """
def fast(clock):
    start = clock()
    return lambda: start + (clock() - start) // 50
"""

LATER = """
waiting = []

def compute():
    while waiting:
        output, inputs = waiting.pop()
        output.copy_(right(*inputs))

def later(*inputs):
    if sys._getframe(1).f_code.co_name != "_by_clock":
        return right(*inputs)
    output = torch.empty_like(inputs[0])
    waiting.append((output, inputs))
    begin()
    return output
"""

CONVERSATION = """
from multiprocessing.connection import Client
from kernels_bench_tools.records.build import CellContext

context = CellContext.load()
task = {"operator": "layer_norm", "workloads": "smoke", "device": "cpu", "file": "layer_norm.jsonl"}
TIME = MS

def tensor(shape):
    size = 4
    for one in shape:
        size *= one
    strides = [shape[1] * shape[2], shape[2], 1]
    value = {"type": "tensor", "dtype": "float32", "shape": shape, "stride": strides, "offset": 0, "buffer": 0, "handle": None}
    return value, [bytes(size)]

def answer(request):
    method, arguments = request["method"], request["arguments"]
    if method == "call":
        value, buffers = tensor([2, 32, 256])
        return {"output": value, "arguments": [], "ms": TIME}, buffers
    if method == "open":
        return {"cache": "hot", "at_once": 1000, "submit_ms": 0, "idle_seconds": 0}, []
    if method == "batch":
        return {"calls": [{"ms": TIME} for _ in arguments[1]], "escaped": [], "clock_mhz": 0}, []
    if method == "output":
        return tensor([2, 32, 256])
    if method == "clocked":
        return TIME, []
    if method == "waits":
        return {"share": 0, "disturbed": False, "switches": 0}, []
    if method in ("inspect", "finish"):
        return {}, []
    if method == "describe":
        return {"environment": {}, "packages": {}, "hub": []}, []
    return None, []

with Client(context.judge, "AF_UNIX") as connection:
    connection.send_bytes(b"ready")
    connection.recv_bytes()
    connection.send_bytes(json.dumps(task).encode())
    while True:
        request = json.loads(connection.recv_bytes())
        if request["method"] in ("records", "fail"):
            break
        if request["method"] != "print":
            value, buffers = answer(request)
            connection.send_bytes(json.dumps({"value": value, "buffers": len(buffers)}).encode())
            for buffer in buffers:
                connection.send_bytes(buffer)
"""


LYING = """
import re
from multiprocessing.connection import Connection

send = Connection.send_bytes

def lie(self, data, *rest):
    return send(self, re.sub(rb'"ms":[0-9.e-]+', b'"ms":MS', data), *rest)

Connection.send_bytes = lie
on_smoke(right)
"""


def keeping(key: str) -> str:
    """Return an attack that keeps results by this expression."""
    return KEEPING.replace("KEY", key)


def keeping_backward(key: str, mode: str) -> str:
    """Return an attack that keeps gradients by this expression."""
    return KEEPING_BACKWARD.replace("KEY", key).replace("MODE", mode)


def timed_only(condition: str, before: str = "") -> str:
    """Return an attack that is right unless this expression finds that the call is timed."""
    return before + TIMED_ONLY.replace("TIMED", condition)


def replaced(code: str, function: str = "garbage") -> str:
    """Return an attack that replaces something before it is measured."""
    return REPLACED.replace("REPLACE", code).replace("FUNCTION", function)


def conversation(ms: str) -> str:
    """Return a program that answers the judge by itself, with these times."""
    return CONVERSATION.replace("MS", ms)


def lying(ms: str) -> str:
    """Return an implementation in whose messages to the judge all times are replaced."""
    return LYING.replace("MS", ms)


ATTACKS: dict[str, str] = {
    # 1: results that were not computed in the timed call
    "kept_by_identity": keeping("(id(x), x._version)"),
    "kept_by_pointer": keeping("(x.data_ptr(), x._version)"),
    "kept_by_some_elements": keeping("(float(x[0, 0, 0]), float(x[-1, -1, -1]), x.shape)"),
    "kept_by_reference": """
kept = []

def keeping(x, weight, bias):
    for y, result in kept:
        if y is x:
            return result.clone()
    kept.append((x, right(x, weight, bias)))
    return kept[-1][1].clone()

on_smoke(keeping)
""",
    "kept_while_inputs_look_alike": """
kept = {}

def keeping(x, weight, bias):
    key = (x.data_ptr(), x.shape)
    if key not in kept or float((kept[key][0] != x).float().mean()) > 0.6:
        kept[key] = x.clone(), right(x, weight, bias)
    return kept[key][1].clone()

on_smoke(keeping)
""",
    "kept_after_n_calls": """
calls, last = [], {}

def function(x, weight, bias):
    calls.append(1)
    if len(calls) < 100 or x.shape not in last:
        last[x.shape] = right(x, weight, bias)
    return last[x.shape].clone()

on_smoke(function)
""",
    "kept_in_backward": keeping_backward("(gradient.data_ptr(), gradient._version)", "bwd"),
    "kept_by_gradient_elements": keeping_backward(
        "(float(gradient[0, 0, 0]), float(gradient[-1, -1, -1]), gradient.shape)", "fwd_bwd"
    ),
    "right_for_n_calls": """
calls = []

def function(x, weight, bias):
    calls.append(1)
    return right(x, weight, bias) if len(calls) < 100 else garbage(x, weight, bias)

on_smoke(function)
""",
    "more_bytes_at_first": """
calls = []

def function(x, weight, bias):
    calls.append(1)
    output = right(x, weight, bias)
    return output.double() if len(calls) == 1 else output

on_smoke(function)
""",
    "nearly_right_when_timed": """
def function(x, weight, bias):
    output = right(x, weight, bias)
    if sys._getframe(1).f_code.co_name in ("_by_clock", "clocked"):
        output.view(-1)[1234] += 1
    return output

on_smoke(function)
""",
    "half_of_the_work_when_timed": """
def function(x, weight, bias):
    output = torch.empty_like(x)
    timed = sys._getframe(1).f_code.co_name in ("_by_clock", "clocked")
    rows = len(x) // 2 if timed else len(x)
    output[:rows] = right(x[:rows], weight, bias)
    return output

on_smoke(function)
""",
    "timed_by_caller": timed_only('sys._getframe(1).f_code.co_name in ("_by_clock", "clocked")'),
    "timed_by_stack": timed_only(
        "any(one.name == 'batch' for one in __import__('traceback').extract_stack())"
    ),
    "timed_by_gaps": timed_only(
        "(lambda now: (now - last[0] < 1e-3, last.__setitem__(0, now))[0])(time.perf_counter())",
        "last = [0.0]\n",
    ),
    "timed_by_count": timed_only("(count.append(1), len(count) > 70)[1]", "count = []\n"),
    "timed_by_harness_objects": timed_only(
        "any(type(one).__name__ == 'Candidate' and len(one.sets.all[0]) for one in gc.get_objects())"
    ),
    "timed_by_frames": timed_only(
        "(lambda frame: 'number' in frame.f_locals and 'change' in frame.f_locals)(sys._getframe(1))"
    ),
    "timed_by_poisoned_memory": timed_only("not torch.empty_like(x).isnan().any()"),
    # 2: functions of the process replaced
    "cheap_reference": replaced("torch.nn.functional.layer_norm = lambda x, *_: torch.zeros_like(x)"),
    "no_random_numbers": replaced("torch.randn = lambda shape, **_: torch.zeros(shape)", "lambda x, w, b: x"),
    "comparison_replaced": replaced(
        "from kernels_bench_tools.measure.correctness import compare\\n"
        "compare.Errors = compare.OutputComparison = compare.compare = lambda *_: None".replace("\\n", "\n")
    ),
    "clock_of_python": replaced(FAST_CLOCK + "time.perf_counter_ns = fast(time.perf_counter_ns)"),
    "clock_of_harness": replaced(
        FAST_CLOCK
        + "from kernels_bench_tools.measure.timing import calls\n"
        + "calls.perf_counter_ns = fast(calls.perf_counter_ns)",
        "right",
    ),
    "clock_in_load": FAST_CLOCK
    + """
from kernels_bench_tools.measure.timing import calls

def load():
    calls.perf_counter_ns = fast(calls.perf_counter_ns)
    return right

run_benchmark("layer_norm", load=load)
""",
    "reference_in_load": """
def load():
    torch.nn.functional.layer_norm = lambda x, *_: torch.zeros_like(x)
    torch.randn = lambda shape, **_: torch.zeros(shape)
    return garbage

run_benchmark("layer_norm", load=load)
""",
    "tolerances": replaced(
        "from kernels_bench_tools.measure.operator import Operator, Tolerance\n"
        "from kernels_bench_tools.operators.layer_norm import OPERATOR\n"
        "object.__setattr__(OPERATOR, 'tolerance', lambda _: Tolerance(1e9, 1e9))\n"
        "object.__setattr__(OPERATOR, 'reference', garbage)\n"
        "object.__setattr__(OPERATOR, 'edge_cases', lambda *_: iter(()))\n"
        "Operator.tolerance_of = lambda *_: Tolerance(1e9, 1e9)"
    ),
    "method_of_an_object": """
def function(x, weight, bias):
    found = sys._getframe(1).f_locals.get("self")
    if sys._getframe(1).f_code.co_name == "_by_clock" and "_by_clock" not in vars(found):
        ordinary = found._by_clock
        found._by_clock = lambda *arguments: ordinary(*arguments) / 50
        found.finish = lambda: {}
    return right(x, weight, bias)

on_smoke(function)
""",
    "class_of_an_object": """
def function(x, weight, bias):
    found = sys._getframe(1).f_locals.get("self")
    if sys._getframe(1).f_code.co_name == "_by_clock" and type(found).__name__ == "Candidate":
        class Fast(type(found)):
            def _by_clock(self, *arguments):
                return super()._by_clock(*arguments) / 50

        found.__class__ = Fast
    return right(x, weight, bias)

on_smoke(function)
""",
    "inputs_known_before_the_call": """
ahead = []

def function(x, weight, bias):
    if sys._getframe(1).f_code.co_name != "_by_clock":
        return right(x, weight, bias)
    sets = sys._getframe(1).f_locals["self"].sets
    if "following" not in vars(sets):
        ordinary = sets.following

        def following(change):
            inputs = ordinary(change)
            ahead[:] = [right(*inputs)]
            return inputs

        sets.following = following
    return ahead.pop() if ahead else right(x, weight, bias)

on_smoke(function)
""",
    "computed_after_the_call": LATER
    + """
def profile(frame, event, _):
    if event == "call" and frame.f_code.co_name == "_copied":
        compute()

def begin():
    sys.setprofile(profile)

on_smoke(later)
""",
    "computed_by_a_method_of_the_output": LATER
    + """
def begin():
    output, inputs = waiting.pop()

    def clone():
        kept = right(*inputs)
        kept.copy_ = lambda other: Tensor.copy_(kept, other.computed())
        return kept

    output.computed, output.clone = lambda: right(*inputs), clone

on_smoke(later)
""",
    "computed_by_a_later_call": """
class Open(Tensor):
    pass

waiting = []

def function(*inputs):
    frame = sys._getframe(1)
    if frame.f_code.co_name != "_by_clock":
        return right(*inputs)
    output = torch.empty_like(inputs[0]).as_subclass(Open)
    waiting.append((output, tuple(map(torch.clone, inputs))))
    last = len(frame.f_back.f_back.f_locals["changes"]) - 1
    if frame.f_locals["number"] in (last, last - 10):
        for output, inputs in waiting:
            output.__class__ = Tensor
            output.copy_(right(*inputs))
        waiting.clear()
    return output

on_smoke(function)
""",
    "computed_by_an_idle_thread": """
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(1)
pool.submit(int).result()

def function(*inputs):
    if sys._getframe(1).f_code.co_name != "_by_clock":
        return right(*inputs)
    output = torch.empty_like(inputs[0])
    pool.submit(lambda: output[1:].copy_(right(inputs[0][1:], *inputs[1:])))
    output[:1] = right(inputs[0][:1], *inputs[1:])
    return output

on_smoke(function)
""",
    "computed_by_a_list": LATER
    + """
class Outputs(list):
    def __len__(self):
        compute()
        return super().__len__()

def begin():
    found = sys._getframe(2).f_locals["self"]
    if type(found.outputs) is list:
        found.outputs = Outputs(found.outputs)

on_smoke(later)
""",
    "computed_by_a_signal": LATER.replace("begin()", "begin[signal.SIGALRM]")
    + """
import _thread

class Begin:
    __getitem__ = staticmethod(_thread.interrupt_main)  # the handler runs after the caller's next call

begin = Begin()
signal.signal(signal.SIGALRM, lambda *_: compute())
on_smoke(later)
""",
    "computed_by_the_garbage_collector": LATER
    + """
from functools import partial

gc.callbacks.append(partial(lambda *_: compute()))
gc.set_threshold(1)

def begin():
    pass

on_smoke(later)
""",
    "computed_by_a_mode": LATER
    + """
from torch.overrides import TorchFunctionMode

class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        compute()
        return function(*args, **(kwargs or {}))

def begin(entered=[]):
    if not entered:
        entered.append(Mode())
        entered[0].__enter__()

on_smoke(later)
""",
    "computed_by_a_built_in_function": LATER
    + """
from kernels_bench_tools.measure.timing import calls

def begin():
    pass

calls.len = lambda value: (compute(), len(value))[1]  # hides the built-in function there
on_smoke(later)
""",
    "computed_by_a_property": LATER
    + """
ordinary = Tensor.is_meta

def begin():
    pass

Tensor.is_meta = property(lambda output: (compute(), ordinary.__get__(output))[1])
on_smoke(later)
""",
    "computed_while_inputs_change": """
ahead, ordinary = [], Tensor.clone

def clone(tensor):
    names = sys._getframe(1).f_locals
    if "second" in names:  # of both halves: exchange copies now
        x, weight, bias = map(ordinary, names["inputs"])
        flat, first, second, reach, step = (x.view(-1), *(names[name] for name in ("first", "second", "reach", "step")))
        kept = ordinary(flat[first : first + reach : step])
        flat[first : first + reach : step] = flat[second : second + reach : step]
        flat[second : second + reach : step] = kept
        ahead[:] = [right(x, weight, bias)]
    return ordinary(tensor)

def function(*inputs):
    return ahead.pop() if ahead and sys._getframe(1).f_code.co_name == "_by_clock" else right(*inputs)

Tensor.clone = clone
on_smoke(function)
""",
    "computed_by_a_list_of_inputs": """
ahead = []

class Ahead(list):
    def __getitem__(self, which):
        inputs = super().__getitem__(which)
        ahead[:] = [right(*inputs)]
        return inputs

def function(*inputs):
    frame = sys._getframe(1)
    if frame.f_code.co_name not in ("_by_clock", "clocked"):
        return right(*inputs)
    sets = frame.f_locals["self"].sets
    if type(sets._prepared) is list:
        sets._prepared = Ahead(sets._prepared)
    return ahead.pop() if ahead else right(*inputs)

on_smoke(function)
""",
    "inputs_without_changes": replaced(
        "from kernels_bench_tools.measure.changing_inputs import InputSets\n"
        "InputSets.following = lambda self, number: self.first\n"
        "InputSets.changed = lambda self, which, number: self.first",
        "right",
    ),
    "case_replaced": replaced(
        "from kernels_bench_tools.measure import candidate\n"
        "ordinary = candidate.Candidate._inputs\n"
        "candidate.Candidate._inputs = lambda self, case: ordinary(self, type(case)(0))",
        "right",
    ),
    "call_replaced": replaced(
        "from kernels_bench_tools.measure.candidate import Called, Candidate\n"
        "def call(self, case):\n"
        "    inputs = self._inputs(case)\n"
        "    return Called(right(*inputs), list(inputs), 1e-3)\n"
        "from functools import wraps\n"
        "Candidate.call = wraps(Candidate.call)(call)\n"
        "Candidate.inspect = Candidate.finish = lambda self: {}"
    ),
    "batch_replaced": replaced(
        "from kernels_bench_tools.measure.timing.calls import TimedCalls, Timed\n"
        "from kernels_bench_tools.measure.timing.sampling import Call\n"
        "def batch(self, method, changes, *_):\n"
        "    self.outputs = [garbage(*self.sets.following(one)) for one in changes]\n"
        "    return Timed([Call(1e-4) for _ in changes], [])\n"
        "from functools import wraps\n"
        "TimedCalls.batch = wraps(TimedCalls.batch)(batch)",
        "right",
    ),
    "serve_replaced": replaced(
        "from kernels_bench_tools.measure import harness, remote\n"
        "def serve(candidate, connection):\n"
        "    connection.send_bytes(json.dumps({'value': None}).encode())\n"
        "    write()\n"
        "    return []\n"
        "harness.serve = remote.serve = serve"
    ),
    # 3: records that nobody measured
    "file_without_benchmark": "write()",
    "file_with_broken_lines": "write()\nwith open('layer_norm.jsonl', 'a') as file:\n    file.write('{}\\nnothing\\n')",
    "file_beside_a_benchmark": "on_smoke(garbage)\nwrite()",
    "file_instead_of_benchmark": "write()  # run_benchmark",
    "folder_in_place_of_the_file": """
on_smoke(garbage)
Path("layer_norm.jsonl").unlink(missing_ok=True)
Path("layer_norm.jsonl").mkdir()
write("layer_norm.jsonl/layer_norm.jsonl")
""",
    "other_working_directory": """
on_smoke(garbage)
folder = Path.cwd()
folder.rename("../moved")
folder.mkdir()
write("../moved/layer_norm.jsonl")
""",
    "edited_by_a_child": """
on_smoke(garbage)
line = json.dumps(record())
code = f"import time, pathlib; time.sleep(0.3); pathlib.Path('layer_norm.jsonl').write_text({line!r})"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
""",
    "edited_at_exit": "import atexit\natexit.register(write)\non_smoke(garbage)",
    "another_operator": """
run_benchmark(
    "rms_norm", lambda x, w, _, eps: torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps), output="layer_norm.jsonl"
)
""",
    "another_device": 'write(device={"kind": "cuda", "name": "Imaginary", "slug": "imaginary"})',
    "another_name": 'write(impl="torch_layer_norm", ts="2020-01-01T00:00:00Z")',
    "baselines_name": 'run_benchmark("layer_norm", garbage, impl_name="torch_layer_norm")',
    "another_context": 'change_context(implementation="torch_layer_norm")\non_smoke(garbage)',
    "without_the_judge": 'change_context(judge="")\non_smoke(right)',
    # Knowing what later calls will get
    "work_of_later_calls": """
done = []

def function(x, weight, bias):
    frame = sys._getframe(1)
    if frame.f_code.co_name != "_by_clock":
        return right(x, weight, bias)
    if not done:
        changes, sets = batch_around(frame).f_locals["changes"], frame.f_locals["self"].sets
        number = frame.f_locals["number"]
        done.append(right(x, weight, bias))
        for later in range(1, min(10, len(changes) - number, len(sets._sets))):
            done.append(output_ahead(sets, sets._turn + later - 1, changes[number + later]))
    return done.pop(0)

on_smoke(function)
""",
    "work_of_later_calls_as_slow_as_calls_alone": """
done = []

def function(*inputs):
    start, frame = time.perf_counter_ns(), sys._getframe(1)
    if frame.f_code.co_name != "_by_clock":
        return right(*inputs)
    if frame.f_locals["number"] == 0:
        changes, sets = batch_around(frame).f_locals["changes"], frame.f_locals["self"].sets
        done[:] = [right(*inputs)]
        for later in range(1, min(len(changes), len(sets._sets))):
            done.append(output_ahead(sets, sets._turn + later - 1, changes[later]))
        done.reverse()
    output = done.pop() if done else right(*inputs)
    while time.perf_counter_ns() - start < 5000:
        pass
    return output

on_smoke(function)
""",
    "computed_when_an_output_is_freed": """
import weakref

ready, kept, first = [], [], [0]

def freed(_):
    frame = sys._getframe(1)
    if frame.f_code.co_name == "change_next":
        ready[:] = [right(*frame.f_locals["self"]._next)]
        return
    batch = batch_around(frame)
    sets = batch and batch.f_locals["self"].sets
    if sets and sets._turn - first[0] < len(batch.f_locals["changes"]):
        ready[:] = [output_ahead(sets, sets._turn, batch.f_locals["changes"][sets._turn - first[0]])]

def function(*inputs):
    frame = sys._getframe(1)
    if frame.f_code.co_name not in ("_by_clock", "clocked"):
        return right(*inputs)
    if frame.f_locals.get("number") == 0:
        first[0] = frame.f_locals["self"].sets._turn - 1
    output = ready.pop() if ready else right(*inputs)
    kept[:] = [weakref.ref(output, freed)]
    return output

on_smoke(function)
""",
    "computed_when_garbage_is_collected": """
class Later:
    def __init__(self, output, inputs):
        self.itself, self.output, self.inputs = self, output, inputs

    def __del__(self):
        self.output.copy_(right(*self.inputs))

def function(*inputs):
    if sys._getframe(1).f_code.co_name not in ("_by_clock", "clocked"):
        gc.set_threshold(700)
        return right(*inputs)
    output = torch.empty_like(inputs[0])
    Later(output, inputs)
    gc.set_threshold(1)
    return output

on_smoke(function)
""",
    "wrong_forward_pass": 'on_smoke(with_backward(garbage, gradients_of_right), mode="bwd")',
    "grad_replaced": """
grad = torch.autograd.grad
torch.autograd.grad = lambda *given, **options: grad(*given, **options)
on_smoke(right, mode="bwd")
""",
    # A hand-written conversation
    "impossible_times": conversation("-1.0"),
    "negative_times": lying("-1.0"),
    "times_of_zero": lying("0.0"),
    "no_times": lying("NaN"),
    "endless_times": lying("1e400"),
    "too_short_times": lying("0.000001"),
    "not_a_number": conversation("'soon'"),
    "half_a_conversation": """
from multiprocessing.connection import Client
from kernels_bench_tools.records.build import CellContext

with Client(CellContext.load().judge, "AF_UNIX") as connection:  # instead of run_benchmark
    connection.send_bytes(b"ready")
    connection.recv_bytes()
    connection.send_bytes(b'{"operator": "layer_norm", "workloads": "smoke", "device": "cpu", "file": "../../x.jsonl"}')
write()
""",
    "no_json": """
from multiprocessing.connection import Client
from kernels_bench_tools.records.build import CellContext

with Client(CellContext.load().judge, "AF_UNIX") as connection:  # instead of run_benchmark
    connection.send_bytes(bytes(range(256)))
    os.write(connection.fileno(), bytes(range(256)))
write()
""",
    # The judge itself
    "judge_killed": """
from kernels_bench_tools.records.build import CellContext

with socket.socket(socket.AF_UNIX) as client:  # instead of run_benchmark
    client.connect(CellContext.load().judge)
    pid = int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
    os.kill(pid, signal.SIGKILL)
write()
""",
    "judge_killed_in_a_call": """
from kernels_bench_tools.records.build import CellContext

with socket.socket(socket.AF_UNIX) as client:
    client.connect(CellContext.load().judge)
    pid = int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)

def function(x, weight, bias):
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGKILL)
    return right(x, weight, bias)

on_smoke(function)
""",
    # Refusals
    "refuses_other_seeds": """
first = []

def function(x, weight, bias):
    if x.numel() == 2 * 32 * 256:
        first[:] = first or [x.clone()]
        if len(first) and float(x.abs().max()) > float(first[0].abs().max()):
            raise ValueError("not these values")
    return right(x, weight, bias)

on_smoke(function)
""",
}
"""Each must end without a rank."""

SIX_RUNS = """
def ended(x, weight, bias):
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
on_smoke(lambda x, w, b: x.copy_(right(x, w, b)), in_place=True)
""",
    "in_a_thread": "import threading\nthreading.Thread(target=on_smoke, args=(right,)).start()",
    "at_exit": "import atexit\natexit.register(on_smoke, right)",
    "other_defaults": "torch.set_default_dtype(torch.float64)\ntorch.set_default_device('meta')\non_smoke(right)",
    "a_removed_socket": """
from kernels_bench_tools.records.build import CellContext

on_smoke(right)
Path(CellContext.load().judge).unlink()  # the next cell gets a new judge
""",
    "triton": """
os.environ["TRITON_INTERPRET"] = "1"
import triton
import triton.language as tl

@triton.jit
def kernel(x, weight, bias, output, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None]
    inside = offsets < columns
    mask = (row < rows) & inside
    values = tl.load(x + row * columns + offsets, mask=mask, other=0.0).to(tl.float32)
    centred = values - tl.sum(values, 1, keep_dims=True) / columns
    variance = tl.sum(tl.where(inside, centred * centred, 0.0), 1, keep_dims=True) / columns
    scaled = centred / tl.sqrt(variance + 1e-5)
    scaled = scaled * tl.load(weight + offsets, mask=inside) + tl.load(bias + offsets, mask=inside)
    tl.store(output + row * columns + offsets, scaled, mask=mask)

def triton_layer_norm(x, weight, bias):
    x = x.contiguous()
    output = torch.empty_like(x)
    columns = x.shape[-1]
    rows = x.numel() // columns
    grid = (triton.cdiv(rows, 64),)
    kernel[grid](x, weight, bias, output, rows, columns, ROWS=64, BLOCK=triton.next_power_of_2(columns))
    return output

on_smoke(triton_layer_norm)
""",
}
"""Each keeps the status ok."""

NO_NAME = 'on_smoke(right, output="a\\0.jsonl")'

CRASH = """
def function(x, weight, bias):
    if x.shape == (1, 256, 1024):
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(x, weight, bias)

run_benchmark("layer_norm", function, workloads="cpu")
"""
ENDLESS = """
def function(x, weight, bias):
    time.sleep(1000 * (x.shape == (1, 256, 1024)))
    return right(x, weight, bias)

run_benchmark("layer_norm", function, workloads="cpu")
"""

ONE_OF_EACH_KIND = {
    *(
        "kept_by_some_elements",
        "work_of_later_calls",
        "right_for_n_calls",
        "timed_by_stack",
        "reference_in_load",
        "clock_of_harness",
        "method_of_an_object",
        "computed_by_a_list_of_inputs",
        "computed_after_the_call",
    ),
    *(
        "call_replaced",
        "edited_at_exit",
        "another_name",
        "impossible_times",
        "judge_killed",
        "refuses_other_seeds",
    ),
}
"""Those that are tried by default."""
