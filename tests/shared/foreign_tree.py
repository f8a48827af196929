"""A tree of notebooks of the shape of huggingface/kernels-benchmarks: its own harness, records without ``schema``."""

from pathlib import Path

HARNESS = '''
import json
import os
import time
import uuid


def run_benchmark(kernel_type, impl_name, impl_tags, impl_func, repeats=5):
    """Time a function without arguments, and append records as kernels-benchmarks does."""
    run = uuid.uuid4().hex
    with open(f"{kernel_type}.jsonl", "a") as file:
        for number, name in enumerate(["cpu_T1_D2", "cpu_T2_D2"]):
            workload = {"name": name, "T": number + 1, "D": 2, "dtype": "float32", "device": "cpu", "seed": 0}
            machine = {"torch": "2.8.0", "cuda": "", "gpu": "", "sm": "", "py": "3.11", "plat": "Linux"}
            record = {"ts": "2025-10-30T12:00:0%dZ" % number, "run": run, "impl": impl_name, "tags": impl_tags}
            record |= {"wl": workload, "env": machine, "lat_ms": None, "ok": False, "corr": {}, "err": None}
            record |= {"notes": {"color": "blue"}}
            try:
                impl_func()
                times = []
                for _ in range(repeats):
                    start = time.perf_counter()
                    impl_func()
                    times.append(1000 * (time.perf_counter() - start))
                times.sort()
                record["lat_ms"] = {"p50": times[repeats // 2], "mean": sum(times) / repeats, "reps": repeats}
                record["ok"] = True
                record["corr"] = {"ok": True, "rtol": 0.01, "atol": 0.01, "ref": "naive"}
                record["absmax"] = 0.0
            except Exception as error:
                record["err"] = {"type": type(error).__name__, "msg": str(error)}
            file.write(json.dumps(record) + "\\n")


def combine(variables):
    """Draw the medians of the record files that uvnote's variables name; return how many there are."""
    found = []
    for variable in variables:
        if folder := os.environ.get(variable):
            for name in sorted(os.listdir(folder)):
                if name.endswith(".jsonl"):
                    with open(os.path.join(folder, name)) as file:
                        found += [json.loads(line) for line in file]
    timed = [record["lat_ms"]["p50"] for record in found if record.get("lat_ms")]
    bars = "".join(f'<rect x="{20 * at}" width="10" height="{50 * time}"/>' for at, time in enumerate(timed))
    with open("latency.svg", "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100">{bars}</svg>')
    return len(found)
'''
PYPROJECT = """[project]
name = "kernels-benchmark-tools"
version = "0.1.0"
requires-python = ">=3.11"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""
HEADER = """# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "kernels-benchmark-tools",
# ]
#
# [tool.uv.sources]
# kernels-benchmark-tools = { path = "../../../../../tools", editable = true }
# ///
"""
INDEX = """# KERNELS COMMUNITY BENCHMARKS

<style>.chart { max-width: 100%; }</style>

## ACTIVATION

<button onclick="location.href='activation/'">Explore Full Bench</button>
<img src="activation/results_linux/artifacts/combine/latency.svg">

## FLASH ATTENTION

<img src="flash_attn/results/artifacts/combine/latency.svg">
"""


def write_tree(root: Path) -> Path:
    """Write the tree: a git repository with ``tools/`` and the notebooks in ``benches/``; return that folder."""

    def write(name: str, text: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write(".git/HEAD", "ref: refs/heads/main\n")
    write("tools/pyproject.toml", PYPROJECT)
    write("tools/kernels_benchmark_tools/__init__.py", HARNESS)
    write("benches/index.md", INDEX)
    for operator, stem, name in (
        ("activation", "torch_swiglu", "torch_eager"),
        ("activation", "hf_kernels_swiglu", "hf_kernels_swiglu"),
        ("flash_attn", "flash_attention", "torch_flash_ma"),
    ):
        write(f"benches/{operator}/impls/{stem}.md", _implementation(operator, [("benchmark", name)]))
    compiled = [
        ("benchmark_default", "torch_flash_compiled_default"),
        ("benchmark_max", "torch_flash_compiled_max"),
    ]
    write("benches/flash_attn/impls/compiled_variants.md", _implementation("attn", compiled))
    fails = _implementation(
        "activation", [("benchmark", "metal_swiglu")], work="raise RuntimeError('no Metal')"
    )
    write("benches/activation/impls/metal_swiglu.md", fails)
    write("benches/activation/impls/darwin_swiglu.md", f"---\nplatforms: [darwin]\n---\n{fails}")
    swiglu = ("torch_swiglu:benchmark", "hf_kernels_swiglu:benchmark", "metal_swiglu:benchmark")
    write("benches/activation/results_linux/combined_results.md", _combined(swiglu))
    darwin = _combined(("darwin_swiglu:benchmark",))
    write("benches/activation/results_darwin/combined_results.md", f"---\nplatforms: [darwin]\n---\n{darwin}")
    attention = ("flash_attention:benchmark", *(f"compiled_variants:{cell}" for cell, _ in compiled))
    write("benches/flash_attn/results/combined_results.md", _combined(attention))
    write("benches/tracing/events.md", EVENTS)
    return root / "benches"


def _implementation(operator: str, cells: list[tuple[str, str]], work: str = "sum(range(1000))") -> str:
    text = """# Implementation

```python id=nv
print("no GPU")
```
"""
    for cell, name in cells:
        text += f"""
## Benchmark

```python id={cell} outputs={operator}.jsonl
{HEADER}from kernels_benchmark_tools import run_benchmark


def kernel():
    {work}


run_benchmark("{operator}", "{name}", {{"family": "{name.partition("_")[0]}", "backend": "eager"}}, kernel)
```
"""
    return text


def _combined(cells: tuple[str, ...]) -> str:
    needs = ",".join(f"../impls/{cell.replace(':', '.md:')}" for cell in cells)
    variables = [f"UVNOTE_FILE_{cell.replace(':', '_').upper()}" for cell in cells]
    return f"""# Combined results

![artifact:latency.svg]

```python id=combine collapse-code=true needs={needs} outputs=latency.svg
{HEADER}from kernels_benchmark_tools import combine

print(combine({variables!r}), "records")
```
"""


EVENTS = """# Events

```python id=trace outputs=events.jsonl
import json

with open("events.jsonl", "w") as file:
    for number in range(3):
        file.write(json.dumps({"event": "start", "number": number}) + "\\n")
```

```python id=none outputs=none.jsonl
open("none.jsonl", "w").close()
```

```python id=read needs=trace
import os

with open(os.path.join(os.environ["UVNOTE_INPUT_TRACE"], "events.jsonl")) as file:
    print(len(file.readlines()), "events")
```
"""
