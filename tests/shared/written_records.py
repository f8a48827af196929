"""Cells that write records without measuring, as ``run_benchmark`` would."""

from pathlib import Path

import msgspec

from kernels_bench_tools.records.device import current_device

LATENCY = {
    "p10": 0.99,
    "p50": 1.00000123,
    "p90": 1.01,
    "mean": 1,
    "iqr": 0,
    "reps": 90,
    "ci_low": 0.99,
    "ci_high": 1.01,
}
CELL = """
import json, os, uuid
context = json.load(open(os.environ["KBT_CONTEXT"]))
latency = LATENCY | {"raw_times": [1 + n / 1000 - context["process"] / 1e4 for n in range(90)]}
for number in range(2):
    record = {
        "ts": "t", "run": uuid.uuid4().hex, "impl": context["implementation"], "op": context["operator"].rpartition("/")[2],
        "process": context["process"], "wl": {"name": f"w{number}"}, "schema": 1, "device": DEVICE,
        "lat_ms": latency, "status": "ok", "ok": True,
    } | MORE
    open("OPERATOR.jsonl", "a").write(json.dumps(record) + chr(10))
"""


def write_implementation(
    project: Path, name: str, front: str = "", operator: str = "softmax", **more: object
) -> None:
    last = operator.rpartition("/")[2]
    code = CELL.replace("LATENCY", repr(LATENCY)).replace("MORE", repr(more)).replace("OPERATOR", last)
    code = code.replace("DEVICE", repr(msgspec.to_builtins(current_device())))
    text = f"---\ntitle: {name}\n{front}\n---\n\n```python id=benchmark outputs={last}.jsonl\n{code}\n```\n"
    path = project / operator / "impls" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
