"""``kbt effect``: an implementation in a tiny model, from the notebook to the printed verdict."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from projects import assert_one_line, run_kbt
from tiny_configs import HUGGINGFACE

from kernels_bench_tools.models.config import config_digest, config_from_huggingface
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records.codec import read_committed, read_records, refuse
from kernels_bench_tools.records.record import Record
from kernels_bench_tools.results.effects import read_effect

NOTEBOOK = """\
---
title: Mine
---

```python id=benchmark outputs=rms_norm.jsonl
import torch

from kernels_bench_tools import run_benchmark


def mine(x, weight, residual=None, eps=1e-6):
    hidden = x if residual is None else x + residual
    scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps)
    return hidden * scale * weight if residual is None else (hidden * scale * weight, hidden)


run_benchmark("rms_norm", mine)
```
"""


OTHER = """\
```python id=benchmark outputs=activation.jsonl
import torch

from kernels_bench_tools import run_benchmark


def other(x):
    gate, up = x.chunk(2, dim=-1)
    return torch.sigmoid(gate) * gate * up


run_benchmark("activation", other, only={"function": "swiglu"})
```
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "rms_norm" / "impls").mkdir(parents=True)
    (tmp_path / "rms_norm" / "impls" / "mine.md").write_text(NOTEBOOK)
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Effects"\n')
    config = {**HUGGINGFACE["llama"], "model_type": "llama", "torch_dtype": "float32"}
    for name in ("tiny", ".tiny", "llama-3.2-1b", "snapshot/config", "qwen3-8b/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    return tmp_path


def test_an_implementation_is_measured_at_every_level_of_a_model(project: Path) -> None:
    command = ("effect", "rms_norm/mine", "--model", "tiny.json", "--phase", "prefill-16", "--env", "current")
    command += ("--layers", "2")
    first = run_kbt(project, *command, "--processes", "1", COLUMNS="80")
    found = {*project.glob("effects/**/*.jsonl")}
    again = run_kbt(project, *command, "--processes", "1", "--json", "--record")

    assert first.returncode == 0, first.stderr
    assert not found
    name = (
        f"tiny-{config_digest(config_from_huggingface(json.loads((project / 'tiny.json').read_text()), ''))}"
    )
    assert first.stdout.startswith(f"rms_norm/mine in {name} with 2 layers, prefill-16,")
    assert "5 of 5 instances replaced and called" in first.stdout
    assert re.search(r"top-1 agreement (\d+) of \1 tokens?", " ".join(first.stdout.split()))
    assert max(map(len, first.stdout.splitlines())) <= 80
    (rows,) = json.loads(again.stdout).values()
    assert [row["effect"]["level"] for row in rows] == [1, 1, 3, 3, 4]
    assert {row["verdict"] for row in rows} == {"none"}
    assert not (project / ".kbt" / "build.json").exists()
    (file,) = project.glob(f"effects/*/{name}/*.jsonl")
    assert file.name == "rms_norm--mine.jsonl"
    (measured,) = project.glob(".kbt/**/artifacts/**/rms_norm.jsonl")
    assert without_samples(read_committed(project, file, refuse)) == without_samples(read_records(measured))
    other = file.read_text().splitlines()[0].replace('"impl":"mine"', '"impl":"other"')
    file.write_text(f"{file.read_text()}{other}\n{{\n")
    done = run_kbt(project, "check")
    assert done.returncode == 1
    assert [re.search(r":(\d+): ", line)[1] for line in done.stderr.splitlines()] == ["6", "7"]


def without_samples(records: list[Record]) -> list[Any]:
    return [
        (one.wl, one.process, one.lat_ms.reps, one.effect.called)
        for one in records
        if one.lat_ms and one.effect
    ]


def test_several_implementations_replace_kernels_of_one_model_together(project: Path) -> None:
    other = project / "activation" / "impls" / "other.md"
    other.parent.mkdir(parents=True)
    # Each imports a cell of its own notebook, and both cells have the same name.
    shared = "```python id=shared\n{}\n```\n\n"
    importing = ("id=benchmark", "id=benchmark needs=shared")
    mine = NOTEBOOK.replace("import torch\n", "import shared\nimport torch\n").replace("1e-6", "shared.EPS")
    before, fence, rest = mine.replace(*importing).partition("```python")
    (project / "rms_norm/impls/mine.md").write_text(before + shared.format("EPS = 1e-6") + fence + rest)
    text = OTHER.replace("import torch\n", "import torch\nfrom shared import silu\n").replace(*importing)
    code = "import torch\n\n\ndef silu(gate):\n    return torch.sigmoid(gate) * gate"
    other.write_text(shared.format(code) + text.replace("torch.sigmoid(gate) * gate", "silu(gate)"))
    # A model is named by the folder of its config.json, and a phase that is named twice is measured once.
    command = ("effect", "rms_norm/mine", "activation/other", "--together", "--model", "snapshot")
    options = ("--phase", "prefill-16,prefill-16", "--env", "current", "--processes", "1", "--json")
    done = run_kbt(project, *command, *options, "--record")

    assert done.returncode == 0, done.stderr
    (rows,) = json.loads(done.stdout).values()
    assert {row["processes"] for row in rows} == {1}
    assert {row["effect"]["module"] for row in rows} >= {"SiluAndMul", "RMSNorm", "LlamaMLP", "eager"}
    assert all(row["effect"]["others"] == ["activation/other"] for row in rows)
    assert {row["effect"]["called"] for row in rows} == {7}
    (file,) = project.glob("effects/*/*/*.jsonl")
    assert re.fullmatch("snapshot-[0-9a-f]{6}", file.parent.name)
    assert file.name == "rms_norm--mine+activation--other.jsonl"
    assert len(read_committed(project, file, refuse)) == len(rows)

    def is_stale() -> bool:
        digests = read_notebook(find_project(project), other).digests
        return read_effect(project, file).has_other_code({"activation/other": {*digests.values()}})

    other.write_text(f"{other.read_text()}Prose.\n".replace("import torch", "import torch  # a comment"))
    assert not is_stale()
    other.write_text(
        other.read_text().replace("sigmoid(gate) *", "sigmoid(gate) * 1 *")
    )  # in the imported cell
    assert is_stale()


def test_a_cell_that_fails_beside_another_one_is_named_and_recorded(project: Path) -> None:
    other = project / "activation" / "impls" / "other.md"
    other.parent.mkdir(parents=True)
    other.write_text(OTHER.replace("def other(x):", "raise ValueError('no GPU')\n\n\ndef other(x):"))
    command = ("effect", "rms_norm/mine", "activation/other", "--together", "--model", "tiny.json")
    options = ("--phase", "prefill-16", "--env", "current", "--processes", "1", "--record")
    done = run_kbt(project, *command, *options)

    assert done.returncode == 1
    assert "rms_norm/impls/mine.md: ValueError: activation/other: no GPU" in done.stdout
    assert [*project.glob("effects")]


@pytest.mark.parametrize(
    ("model", "options", "where", "remedy"),
    [
        ("lama-3.1-8b", "decode-1", "--model lama-3.1-8b", "Did you mean 'llama-3.1-8b'"),
        ("falcon-mamba-7b", "decode-1", "--model falcon-mamba-7b", "`--framework transformers`"),
        ("absent.json", "decode-1", "--model absent.json", "A config.json"),
        ("tiny.json", "decode", "--phase decode", "prefill-2048"),
        ("tiny.json", "train-16", "--phase train-16", "--framework transformers"),
        ("llama-3.2-1b.json", "decode-1", "--model llama-3.2-1b.json", "Rename it"),
        ("qwen3-8b/config.json", "decode-1", "--model qwen3-8b/config.json", "Rename it"),
        (".tiny.json", "prefill-16", "--model .tiny.json", "Rename it"),
        ("gelu.json", "prefill-16", "--model gelu.json", '"silu"'),
        ("tiny.json", "decode-1", "--phase decode-1", "prefill-64"),
        ("tiny.json", "prefill-16 --layers 3", "--layers 3", "At most 2"),
    ],
)
def test_what_cannot_be_measured_is_one_line_before_anything_runs(
    project: Path, model: str, options: str, where: str, remedy: str
) -> None:
    gelu = (project / "tiny.json").read_text().replace("silu", "gelu")
    (project / "gelu.json").write_text(gelu)
    command = ("effect", "rms_norm/mine", "--record", "--model", model, "--phase", *options.split())

    assert_one_line(run_kbt(project, *command), f"kbt: {where}: ", remedy)

    assert not {*project.glob("effects")} | {*project.glob(".kbt")}


def test_models_of_one_name_with_other_shapes_have_records_of_their_own() -> None:
    names = ("one", "two")
    same = [config_from_huggingface({**HUGGINGFACE["llama"], "model_type": "llama"}, name) for name in names]
    layers = HUGGINGFACE["llama"]["num_hidden_layers"] + 1
    other = msgspec.structs.replace(same[0], num_hidden_layers=layers)

    assert config_digest(same[0]) == config_digest(same[1]) != config_digest(other)


@pytest.mark.parametrize(
    ("notebook", "operator", "what"),
    [
        ("rms_norm/impls/twice.md", "rms_norm", "which another notebook replaces already"),
        ("other.md", "", "measures no implementation"),
        ("rms_norm/impls/norm.md", "layer_norm", "cannot be replaced in a model"),
    ],
)
def test_another_notebook_is_refused_and_none_runs(
    project: Path, notebook: str, operator: str, what: str
) -> None:
    cell = NOTEBOOK.replace('"rms_norm"', f'"{operator}"') if operator else "```python id=one\n1\n```\n"
    (project / notebook).write_text(cell)
    names = ("rms_norm/mine", notebook) if operator else (notebook,)
    done = run_kbt(project, "effect", *names, "--together", "--model", "tiny.json", "--phase", "prefill-16")

    assert_one_line(done, f"kbt: {notebook}: ", what)
    assert not (project / ".kbt").exists()
