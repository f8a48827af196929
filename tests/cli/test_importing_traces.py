"""``kbt import trace``: sets of flashinfer-trace."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from projects import run_kbt
from safetensors.torch import save_file

REFERENCE = """import torch

def run(x, weight, eps):
    assert x.shape[-1] == 64
    rows = x.to(torch.float32)
    return (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)
"""
DEFINITION = {
    "name": "rmsnorm_h64",
    "op_type": "rmsnorm",
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden"], "dtype": "bfloat16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"out": {"shape": ["rows", "hidden"], "dtype": "bfloat16"}},
    "reference": REFERENCE,
}
INPUTS = {
    "x": {"type": "random"},
    "weight": {"type": "safetensors", "path": "blob/weight.safetensors", "tensor_key": "w"},
    "eps": {"type": "scalar", "value": 1e-5},
}
WORKLOAD = {"uuid": "a1", "axes": {"rows": 16}, "inputs": INPUTS}
HELPER = "import torch\n\ndef norm(x, weight, eps):\n    return torch.nn.functional.rms_norm(x, (64,), weight, eps)\n"
CALL = "from .own.helper import norm\n\ndef run(x, weight, eps{out}):\n{body}\n"
FILLS = CALL.format(out=", out", body="    out.copy_(norm(x, weight, eps))")
RETURNS = CALL.format(out="", body="    return {'out': norm(x, weight, eps)}")
BUG = "    found = norm(x, weight, eps)\n    return found + 0.5 if x.flatten()[0] > -2 else found"
CACHED = "    if not kept:\n        kept.append(norm(x, weight, eps))\n    return kept[0]\n\nkept = []"
CHANGES = "    found = norm(x, weight, eps)\n    x.zero_()\n    return found"
SOLUTIONS = {
    "fills": ("PASSED", FILLS, True),
    "returns": ("PASSED", RETURNS, False),
    "bug_in_data": ("INCORRECT_NUMERICAL", CALL.format(out="", body=BUG), False),
    "cached": ("INCORRECT_NUMERICAL", CALL.format(out="", body=CACHED), False),
    "other_shape": ("INCORRECT_SHAPE", CALL.format(out="", body="    return x[:1]"), False),
    "changes_inputs": ("RUNTIME_ERROR", CALL.format(out="", body=CHANGES), False),
    "raises": ("RUNTIME_ERROR", CALL.format(out="", body="    raise ValueError('own words')"), False),
}


def _solution(name: str, text: str, **spec: Any) -> dict[str, Any]:
    sources = [{"path": "main.py", "content": text}, {"path": "own/helper.py", "content": HELPER}]
    own = {"language": "python", "entry_point": "main.py::run", "target_hardware": ["cpu"], **spec}
    return {
        "name": name,
        "definition": DEFINITION["name"],
        "author": "me",
        "spec": own,
        "sources": sources,
    }


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    _write(folder / "definitions/rmsnorm/rmsnorm_h64.json", DEFINITION)
    line = {"definition": DEFINITION["name"], "solution": None, "workload": WORKLOAD, "evaluation": None}
    _write(folder / "workloads/rmsnorm/rmsnorm_h64.jsonl", json.dumps(line) + "\n")
    (folder / "blob").mkdir()
    save_file({"w": torch.rand(64).to(torch.bfloat16)}, folder / "blob/weight.safetensors")
    return folder


def _import(folder: Path) -> dict[str, Any]:
    done = run_kbt(folder, "import", "trace", "set", "--traces", "out.jsonl", "--json", timeout=600)
    assert done.returncode in {0, 1}, done.stderr
    return {row["candidate"]: row for row in json.loads(done.stdout)["results"]}


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_each_solution_gets_the_trace_that_it_deserves_and_what_cannot_be_loaded_costs_itself_only(
    traces: Path,
) -> None:
    for name, (_, text, fills) in SOLUTIONS.items():
        _write(traces / f"solutions/me/{name}.json", _solution(name, text, destination_passing_style=fills))
    _write(traces / "solutions/b.json", _solution("in_cuda", "", language="cuda"))
    _write(traces / "solutions/c.json", _solution("../outside", FILLS))
    _write(traces / "solutions/broken.json", "{")
    _write(traces / "solutions/deep.json", '{"a": ' + "[" * 100_000)
    (traces / "solutions/byte.json").write_bytes(b'{"name": "\xff"}')
    (traces / "workloads/bad.jsonl").write_bytes(b"\xff\n" + b"[" * 100_000)
    Path(os.fsdecode(os.fsencode(traces / "solutions") + b"/\xff.json")).write_text(
        json.dumps(_solution("ours", FILLS))
    )
    (traces / "solutions/a_folder.json").mkdir()
    _write(traces / "solutions/long.json", _solution("x" * 300, FILLS))
    _write(traces / "solutions/d.json", {**_solution("of_nothing", FILLS), "definition": "none"})

    rows = _import(traces.parent)

    found = {line["solution"]: line for line in _lines(traces.parent)}
    # By other programs: a correct result then has no speed-up, and no line.
    disturbed = {
        name for name, row in rows.items() if "disturbed" in {row["status"], row["baseline_status"]}
    } & {"fills", "returns"}
    for name in SOLUTIONS.keys() - disturbed:
        line, evaluation = found[name], found[name]["evaluation"]
        assert evaluation["status"] == SOLUTIONS[name][0], (name, evaluation)
        assert (line["definition"], line["workload"]) == (DEFINITION["name"], WORKLOAD)
        assert ("performance" in evaluation) == (evaluation["status"] == "PASSED")
        assert ("correctness" in evaluation) == (evaluation["status"] in {"PASSED", "INCORRECT_NUMERICAL"})
    assert "changed its inputs" in found["changes_inputs"]["evaluation"]["log"]
    assert "own words" in found["raises"]["evaluation"]["log"]
    assert (rows["in_cuda"]["status"], rows["broken"]["status"]) == ("unsupported", "invalid")
    assert (rows["../outside"]["status"], rows["of_nothing"]["status"]) == ("invalid", "invalid")
    for name in ("deep", "byte", "bad", "ours", "a_folder", "x" * 300):
        assert rows[name]["status"] == "invalid"
    assert "nested too deeply" in rows["deep"]["reason"]
    assert found.keys() <= SOLUTIONS.keys()
    assert rows["fills"]["correct"]
