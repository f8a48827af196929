"""Attacks on the measurement, as code of cells: each cell has this whole file, and then a call.

``attacked`` notes that an attack has taken place: one that was disarmed, such as by a name that no longer exists, has not.
"""

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, wraps
from multiprocessing.connection import Client, Connection
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.measure import harness
from kernels_bench_tools.measure.correctness import compare
from kernels_bench_tools.measure.judge import candidate as calls  # noqa: F401 - cells use it
from kernels_bench_tools.measure.judge import candidate as candidate_module
from kernels_bench_tools.measure.judge import remote
from kernels_bench_tools.measure.judge.candidate import CallResult, Candidate, TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputSets
from kernels_bench_tools.measure.operator import CallError, Operator, Tolerance
from kernels_bench_tools.measure.timing import queue, seam_kernel
from kernels_bench_tools.measure.timing.queue import HostSeal
from kernels_bench_tools.operators.layer_norm import OPERATOR
from kernels_bench_tools.records.record import Failure, Status
from kernels_bench_tools.records.request import CellContext

NAME = MARK = DEVICE = ""
"""The implementation, the file that shows that an attack has taken place, and the device as JSON; each cell sets them."""
exact = torch.nn.functional.layer_norm
ordinary_clone, ordinary_grad = Tensor.clone, torch.autograd.grad
marked = []


def attacked(value=None):
    if not marked:
        marked.append(True)
        os.close(os.open(MARK, os.O_CREAT))
    return value


def right(x, weight, bias, eps=1e-5):
    return exact(x, x.shape[-1:], weight, bias, eps)


def garbage(x, *_):
    return torch.zeros_like(x)


def gradients_of_right(saved, gradient):
    leaves = [value.detach().requires_grad_() for value in saved]
    with torch.enable_grad():
        return ordinary_grad(right(*leaves), leaves, gradient)


def with_backward(forward_pass, backward_pass):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, *inputs):
            context.save_for_backward(*inputs)
            return forward_pass(*inputs)

        @staticmethod
        def backward(context, gradient):
            return backward_pass(context.saved_tensors, gradient)

    return Function.apply


def on_cpu(function):
    """Measure on calls that are long enough for the judge's clock."""
    return on_smoke(function, workloads="cpu", only={"seq_len": 512})


def on_cpu_after(change):
    return lambda function: run_benchmark(
        "layer_norm", load=lambda: (change(), function)[1], workloads="cpu", only={"seq_len": 512}
    )


def on_smoke(function, operator="layer_norm", **options):
    return run_benchmark(operator, function, **options)


def timed(*_):
    """Return whether the function that asks was called by a timed call."""
    return sys._getframe(2).f_code.co_name in {"clocked", "_queue_on_host"}


def when(condition, cheat=garbage):
    """Measure a function that is right unless the condition finds that the call is timed."""

    @on_smoke
    def function(*inputs):
        return attacked(cheat(*inputs)) if condition(*inputs) else right(*inputs)


def after(count, cheat=garbage):
    """Measure a function that is right for so many calls."""
    made = []
    when(lambda *_: made.append(1) or len(made) > count, cheat)


def replace(owner, name, value, put=setattr):
    """Replace what exists and is used; ``AttributeError`` otherwise."""
    getattr(owner, name)
    put(owner, name, value)
    attacked()


# 1: results that were not computed in the timed call


def keeping(key, compute=right):
    """Return a function that keeps results by a key of its arguments."""
    kept, held = {}, []  # held, so that no other tensor gets its identity or address

    def function(*given):
        found = key(*given)
        if found in kept:
            attacked()
        else:
            held.append(given)
            kept[found] = compute(*given)
        return tuple(map(torch.clone, kept[found])) if type(kept[found]) is tuple else kept[found].clone()

    return function


def keeping_backward(key, mode):
    on_smoke(with_backward(right, keeping(key, gradients_of_right)), mode=mode)


def some_elements(x, *rest):
    return float(x[0, 0, 0]), float(x[-1, -1, -1]), x.shape, rest[2:]


def kept_while_inputs_look_alike():
    kept = {}

    @on_smoke
    def function(x, *rest):
        key = x.data_ptr(), x.shape, round(float(x.double().sum()), 3)
        if key in kept:
            attacked()
        else:
            kept[key] = right(x, *rest)
        return kept[key].clone()


def more_bytes_at_first():
    made = []

    @on_smoke
    def function(*inputs):
        made.append(1)
        output = right(*inputs)
        return attacked(output.double()) if len(made) == 1 else output


def nearly_right(*inputs):
    output = right(*inputs)
    output.view(-1)[1234] += 1
    return output


def half_of_the_work(x, *rest):
    output = torch.empty_like(x)
    output[: len(x) // 2] = right(x[: len(x) // 2], *rest)
    return output


def timed_by_gaps():
    last = [0.0]

    def short_gap(*_):
        last.append(time.perf_counter())
        return last[-1] - last[-2] < 1e-3

    when(short_gap)


def unwritten_memory(x, *_):
    return x.numel() == 2 * 32 * 256 and not torch.empty_like(x).isnan().any()


# 2: functions of the process replaced


def fast(clock):
    start = clock()
    return lambda: start + (clock() - start) // 50


def comparison_replaced():
    for name in ("compare", "OutputComparison", "require_correct"):
        replace(compare, name, lambda *_: None)
    on_smoke(garbage)


def in_load(change, function):
    """Change the process while the implementation is loaded."""
    on_smoke(None, load=lambda: (change(), function)[1])


def replace_reference():
    replace(torch.nn.functional, "layer_norm", lambda x, *_: torch.zeros_like(x))
    replace(torch, "randn", lambda shape, **_: torch.zeros(shape))


def tolerances():
    replace(OPERATOR, "tolerance", lambda _: Tolerance(1e9, 1e9), put=object.__setattr__)
    replace(OPERATOR, "reference", garbage, put=object.__setattr__)
    replace(OPERATOR, "edge_cases", lambda *_: iter(()), put=object.__setattr__)
    replace(Operator, "tolerance_of", lambda *_: Tolerance(1e9, 1e9))
    on_smoke(garbage)


def inputs_known_before_the_call():
    ahead = []

    @on_cpu
    def function(*inputs):
        if not timed():
            return right(*inputs)
        sets = sys._getframe(1).f_locals["self"].sets
        if "following" not in vars(sets):
            ordinary = sets.following

            def following(change):
                changed = ordinary(change)
                ahead[:] = [right(*changed)]
                return changed

            replace(sets, "following", following)
        return ahead.pop() if ahead else right(*inputs)


# Work after the call: its output is written between calls

waiting = []


def compute(*_):
    while waiting:
        output, inputs = waiting.pop()
        attacked(output.copy_(right(*inputs)))


def computed_later(begin=id):
    """Measure a function that leaves its work to what ``begin`` starts, or to something else that calls ``compute``."""
    # Without a call in Python, after which its handlers of signals run.
    hook = type("Hook", (), {"__getitem__": staticmethod(begin)})()

    def later(*inputs):
        if not timed():
            return right(*inputs)
        output = torch.empty_like(inputs[0])
        waiting.append((output, inputs))
        hook[signal.SIGALRM]
        return output

    on_cpu(later)


def computed_after_the_call():
    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_name == "following":
            compute()

    computed_later(lambda _: sys.setprofile(profile))


def computed_by_a_method_of_the_output():
    def begin(_):
        output, inputs = waiting.pop()

        def clone():
            kept = right(*inputs)
            kept.copy_ = lambda other: Tensor.copy_(kept, other.computed())
            return kept

        output.computed, output.clone = lambda: right(*inputs), clone
        attacked()

    computed_later(begin)


def computed_by_an_idle_thread():
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()

    @on_cpu  # a short call waits for it, as Python gives the thread its turn
    def function(x, *rest):
        if not timed():
            return right(x, *rest)
        output, half = torch.empty_like(x), len(x) // 2
        pool.submit(lambda: attacked(output[half:].copy_(right(x[half:], *rest))))
        output[:half] = right(x[:half], *rest)
        return output


def computed_by_the_garbage_collector():
    gc.callbacks.append(partial(compute))
    gc.set_threshold(1)
    computed_later()


def computed_by_a_mode():
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            compute()
            return function(*args, **(kwargs or {}))

    entered = []
    computed_later(lambda _: entered or entered.append(Mode().__enter__()))


def computed_by_a_built_in_function():
    queue.len = lambda value: (compute(), len(value))[1]  # hides the built-in function there
    computed_later()


def computed_by_a_property():
    ordinary = Tensor.is_meta
    Tensor.is_meta = property(lambda output: (compute(), ordinary.__get__(output))[1])
    computed_later()


# Work before the call: its inputs are known


def output_ahead(sets, change):
    inputs = tuple(value.clone() for value in sets._sets[sets._turn % len(sets._sets)])
    sets._changes.exchange(inputs, change)
    return attacked(right(*inputs))


def computed_while_inputs_change():
    ahead = []

    def clone(tensor):
        names = sys._getframe(1).f_locals
        if "second" in names:  # of both halves: exchange copies now
            x, *rest = map(ordinary_clone, names["inputs"])
            flat, first, second, reach, step = (
                x.view(-1),
                *map(names.get, ("first", "second", "reach", "step")),
            )
            kept = ordinary_clone(flat[first : first + reach : step])
            flat[first : first + reach : step] = flat[second : second + reach : step]
            flat[second : second + reach : step] = kept
            ahead[:] = [right(x, *rest)]
        return ordinary_clone(tensor)

    def function(*inputs):
        return attacked(ahead.pop()) if ahead and timed() else right(*inputs)

    Tensor.clone = clone
    on_cpu(function)


def computed_by_a_list_of_inputs():
    ahead = []

    class Ahead(list):
        def __getitem__(self, which):
            inputs = super().__getitem__(which)
            ahead[:] = [right(*inputs)]
            return inputs

    @on_cpu
    def function(*inputs):
        if not timed():
            return right(*inputs)
        sets = sys._getframe(1).f_locals["self"].sets
        if type(sets._prepared) is list:
            sets._prepared = Ahead(sets._prepared)
        return attacked(ahead.pop()) if ahead else right(*inputs)


def inputs_without_changes():
    replace(InputSets, "following", lambda self, number: self.first)
    replace(InputSets, "changed", lambda self, which, number: self.first)
    on_smoke(right)


def case_replaced():
    ordinary = Candidate._inputs
    replace(candidate_module.Candidate, "_inputs", lambda self, case: ordinary(self, type(case)(0)))
    on_smoke(right)


def call_replaced():
    def call(self, case):
        inputs = self._inputs(case)
        return CallResult(right(*inputs), list(inputs), 1e-3)

    replace(Candidate, "call", wraps(Candidate.call)(call))
    for name in ("inspect", "finish"):
        replace(Candidate, name, lambda self: {})
    on_smoke(garbage)


def timing_replaced():
    def clocked(self, change):
        self.outputs = [right(*self.sets.following(change))]
        return 1e-3

    replace(TimedCalls, "clocked", wraps(TimedCalls.clocked)(clocked))
    on_cpu(right)


# Work beside the call: the message has been read, or the answer is not yet sent


def computed_ahead(hook):
    """Measure a function whose work is done by what ``hook`` replaces: it gets a function of the candidate's sets and a change."""
    ready, found = [], []

    def compute_ahead(change):
        if found:
            ready[:] = [output_ahead(found[0], change)]

    @on_cpu_after(lambda: hook(compute_ahead))
    def function(*inputs):
        if timed() and not found:
            found.append(sys._getframe(1).f_locals["self"].sets)
        return ready.pop() if ready and timed() else right(*inputs)


def computed_when_the_message_is_read():
    def hook(compute_ahead):
        receive = Connection.recv_bytes

        def received(self, *rest):
            message = receive(self, *rest)
            if b'"clocked"' in message:
                compute_ahead(json.loads(message)["arguments"][0])
            return message

        Connection.recv_bytes = received

    computed_ahead(hook)


def computed_when_bytes_are_read():
    def hook(compute_ahead):
        (read,) = Connection._recv.__defaults__

        def reading(handle, size):
            data = read(handle, size)
            if b'"clocked"' in data:
                compute_ahead(json.loads(data)["arguments"][0])
            return data

        Connection._recv.__defaults__ = (reading,)

    computed_ahead(hook)


def computed_by_a_finalizer_of_tensors():
    def hook(compute_ahead):
        def freed(tensor):
            if sys._getframe(1).f_code.co_name == "changed":
                compute_ahead(0)

        Tensor.__del__ = freed

    computed_ahead(hook)


def computed_when_the_output_is_digested():
    following, output = HostSeal.following, TimedCalls.output

    def digested(self, *rest):
        compute()
        return following(self, *rest)

    HostSeal.following = digested
    replace(Candidate, "output", lambda self, number: (compute(), output(self, number))[1])
    computed_later()


def digests_made_up():
    def following(self, output, make):
        attacked()
        self._words[seam_kernel.DIGESTS + len(self.keys) - 1] = 1
        if make is not None:
            self.keys.append(queue._mix(self.keys[-1] + 1))

    HostSeal.following = following
    on_cpu(
        lambda *inputs: (
            garbage(*inputs) if sys._getframe(1).f_code.co_name == "_queue_on_host" else right(*inputs)
        )
    )


def another_program_with_a_slow_clock():
    if "SLOW" not in os.environ:
        script, code = Path("slow.py"), "import os, sys, time, runpy\nclock = time.perf_counter_ns\n"
        code += "start = clock()\ntime.perf_counter_ns = lambda: start + (clock() - start) // 4\n"
        code += "from kernels_bench_tools.measure.judge import remote\nremote.TOKEN.append(os.environ['SLOW'].encode())\n"
        script.write_text(
            f"{code}sys.argv[:] = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
        )
        os.environ["SLOW"] = remote.TOKEN[0].decode()
        attacked(os.execv(sys.executable, [sys.executable, str(script), sys.argv[0]]))
    attacked()
    on_cpu(right)


def serve_replaced():
    def serve(candidate, connection):
        connection.send_bytes(json.dumps({"value": None}).encode())
        write()
        return []

    replace(harness, "serve", serve)
    replace(remote, "serve", serve)
    on_smoke(garbage)


def computed_when_garbage_is_collected():
    class Later:
        def __init__(self, output, inputs):
            self.itself, self.output, self.inputs = self, output, inputs

        def __del__(self):
            attacked(self.output.copy_(right(*self.inputs)))

    @on_cpu
    def function(*inputs):
        if not timed():
            gc.set_threshold(700)
            return right(*inputs)
        output = torch.empty_like(inputs[0])
        Later(output, inputs)
        gc.set_threshold(1)
        return output


# 3: records that nobody measured


def record(**changes):
    latency = dict.fromkeys(("p10", "p50", "p90", "mean"), 0.1)
    return {
        "ts": "2030-01-01T00:00:00Z",
        "run": "forged",
        "impl": NAME,
        "op": "layer_norm",
        "schema": 1,
        "wl": {"name": "smoke_S32_D256", "batch": 2, "seq_len": 32, "hidden_dim": 256, "dtype": "float32"},
        "lat_ms": {**latency, "iqr": 0, "reps": 90, "raw_times": [0.1] * 90},
        "device": json.loads(DEVICE),
        "status": "ok",
        "ok": True,
        "judged": "separately",
        **changes,
    }


def write(path="layer_norm.jsonl", **changes):
    attacked(Path(path).write_text(json.dumps(record(**changes)) + "\n", "utf-8"))


def change_context(**changes):
    context = json.loads(Path(os.environ["KBT_CONTEXT"]).read_text("utf-8"))
    assert changes.keys() <= context.keys()
    Path("context.json").write_text(json.dumps(context | changes), "utf-8")
    os.environ["KBT_CONTEXT"] = attacked(str(Path("context.json").resolve()))


def file_with_broken_lines():
    write()
    with Path("layer_norm.jsonl").open("a") as file:
        file.write("{}\nnothing\n")


def folder_in_place_of_the_file():
    on_smoke(garbage)
    Path("layer_norm.jsonl").unlink(missing_ok=True)
    Path("layer_norm.jsonl").mkdir()
    write("layer_norm.jsonl/layer_norm.jsonl")


def other_working_directory():
    on_smoke(garbage)
    folder = Path.cwd()
    folder.rename("../moved")
    folder.mkdir()
    write("../moved/layer_norm.jsonl")


def edited_by_a_child():
    on_smoke(garbage)
    code = f"import time, pathlib; time.sleep(0.3); pathlib.Path('layer_norm.jsonl').write_text({json.dumps(record())!r})"
    attacked(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))


def another_operator():
    def function(x, weight, bias, eps):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)

    attacked()
    on_smoke(function, "rms_norm", output="layer_norm.jsonl")


# A conversation with the judge that is not the harness's


def connected():
    connection = Client(CellContext.load().judge, "AF_UNIX")
    connection.send_bytes(remote.TOKEN[0])
    connection.recv_bytes()
    return connection


def task(file="layer_norm.jsonl"):
    return json.dumps(
        {"operator": "layer_norm", "workloads": "smoke", "device": "cpu", "file": file}
    ).encode()


def conversation(ms, dtype="torch.float32"):
    """Answer the judge up to the first time, which it does not take."""
    output = {"type": "tensor", "dtype": dtype, "shape": [2, 32, 256], "stride": [8192, 256, 1]}
    called = {"output": output | {"offset": 0, "buffer": 0, "handle": None}, "arguments": [], "ms": ms}
    with connected() as connection:
        connection.send_bytes(task())
        while (method := json.loads(connection.recv_bytes())["method"]) not in {"records", "fail"}:
            if method == "call":
                attacked(connection.send_bytes(json.dumps({"value": called, "buffers": 1}).encode()))
                connection.send_bytes(bytes(2**16))
            elif method != "print":
                value = {"environment": {}, "packages": {}, "hub": []} if method == "describe" else None
                connection.send_bytes(json.dumps({"value": value}).encode())


def lying(ms):
    """Measure a right function, in whose messages to the judge all times are replaced."""
    send = Connection.send_bytes

    def lie(self, data, *rest):
        told, count = re.subn(rb'("ms"|^."value"):[0-9.e-]+', rb"\1:" + ms, data)
        if count:
            attacked()
        return send(self, told, *rest)

    Connection.send_bytes = lie
    on_smoke(right)


def another_program():
    script = "from kernels_bench_tools import run_benchmark\nrun_benchmark('layer_norm', lambda x, *_: x)\n"
    attacked()
    os.execv(sys.executable, [sys.executable, "-c", script])


def half_a_conversation():
    with connected() as connection:
        connection.send_bytes(task("../../x.jsonl"))
    write()


def no_json():
    with suppress(BrokenPipeError), Client(CellContext.load().judge, "AF_UNIX") as connection:
        connection.send_bytes(bytes(range(256)))
        os.write(connection.fileno(), bytes(range(256)))
    write()


def pid_of_the_judge():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(CellContext.load().judge)
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


def judge_killed():
    attacked(os.kill(pid_of_the_judge(), signal.SIGKILL))
    write()


def judge_killed_in_a_call():
    pid = pid_of_the_judge()

    @on_smoke
    def function(*inputs):
        if Path(f"/proc/{pid}").exists():
            attacked(os.kill(pid, signal.SIGKILL))
        return right(*inputs)


def refuses_other_seeds():
    first = []

    @on_smoke
    def function(x, *rest):
        if x.numel() == 2 * 32 * 256:
            first[:] = first or [x.clone()]
            if float(x.abs().max()) > float(first[0].abs().max()):
                raise attacked(ValueError("not these values"))
        return right(x, *rest)


def ended_as_ok(*_):
    raise attacked(CallError(Status.OK, Failure(type="Fine", msg="it ended well")))


def unreadable_error(*_):
    raise attacked(type("Unreadable", (Exception,), {"__str__": lambda error: 1 / 0})())


def no_text_in_error(*_):
    raise attacked(ValueError("a\udc80"))


def wrong_unless_the_size_is_public():
    @on_smoke
    def function(x, *rest):
        out = right(x, *rest)
        if x.shape[-1] not in (256, 1000, 769, 8, 5000):
            attacked()
            out[..., -1] = 0
        return out


def outputs_from_a_ring():
    ring = {}

    @on_smoke
    def function(x, *rest):
        own = ring.setdefault((x.shape, x.dtype), [torch.empty_like(x) for _ in range(6)])
        own.append(own.pop(0))
        return attacked(own[-1].copy_(right(x, *rest)))
