"""``kbt gate``: versions in one session."""

import json
import re

import pytest
from projects import commit_all, git, run_kbt
from workspace import make_wheel
from written_records import LATENCY, write_implementation

from kernels_bench_tools.notebooks.header import read_header, with_version

FIRST = {"provenance": {"code_digest": "c1"}}


def latency(factor: float = 1.0) -> dict[str, object]:
    times = {name: value * factor for name, value in LATENCY.items() if name != "reps"}
    return {"lat_ms": {**times, "reps": 9, "raw_times": [factor * (1 + n / 1e6) for n in range(9)]}}


@pytest.fixture
def operator(bare):
    for name in ("plain", "mine"):
        write_implementation(bare, name, "baseline: true" if name == "plain" else "", **latency(), **FIRST)
    commit_all(bare)
    return bare


def gate(project, *arguments):
    return run_kbt(project, "gate", "--env", "current", "--against", "HEAD", *arguments)


def processes(done) -> list[str]:
    return [
        f"{name}{number}"
        for name, number in re.findall(r"([\w.]+)\.md:benchmark  running, process (\d)", done.stderr)
    ]


def test_both_versions_take_turns_and_what_did_not_change_passes(operator):
    done, other = gate(operator, "softmax/mine", "--json"), gate(operator)

    assert done.returncode == 0, done.stderr
    assert processes(done) == ["mine.against1", "mine1", "mine2", "mine.against2", "mine.against3", "mine3"]
    rows = json.loads(done.stdout)["rows"]
    assert [(row["implementation"], row["workload"], row["change"]) for row in rows] == [
        ("mine", "w0", "same"),
        ("mine", "w1", "same"),
    ]
    assert (other.returncode, processes(other)) == (0, [])
    assert "no notebook differs from HEAD" in other.stderr


def test_a_slower_version_fails_after_a_second_round_by_its_code_and_run_only_compares(operator):
    write_implementation(operator, "mine", **latency(1.02), provenance={"code_digest": "c2"})

    done = gate(operator)  # the other notebook does not differ
    ran = run_kbt(operator, "run", "softmax/mine", "--env", "current", "--against", "HEAD")

    assert (done.returncode, ran.returncode) == (1, 0), ran.stderr
    assert len(processes(done)) == 12
    assert done.stdout.startswith("2 slower (by code), 0 faster")
    assert ran.stdout.startswith("2 slower (by code), 0 faster")
    assert "plain" not in done.stdout
    assert git(operator, "status", "--porcelain", "softmax").split() == ["M", "softmax/impls/mine.md"]
    assert not (operator / ".kbt/build.json").exists()


def test_an_alarm_that_does_not_repeat_is_none(operator, tmp_path):
    file, runs = operator / "softmax/impls/mine.md", tmp_path / "runs"
    slow_at_first = (
        f"    file = __import__('pathlib').Path({str(runs)!r})\n"
        "    file.write_text((file.read_text() if file.exists() else '') + 'x')\n"
        "    record['lat_ms'] = dict(record['lat_ms'], p50=1.5 if len(file.read_text()) <= 6 else 1.0)\n"
        "    open("
    )
    file.write_text(file.read_text().replace("    open(", slow_at_first))

    done = gate(operator)

    assert done.returncode == 0, done.stderr
    assert len(processes(done)) == 12
    assert done.stdout.startswith("0 slower, 0 faster, 2 no change")


HEADERS = {
    "one line": '# dependencies = ["torch", "triton"]\n',
    "lines": '# dependencies = [\n#     "torch",\n# ]\n#\n# [tool.uv]\n# exclude-newer = "2026-11-20T00:00:00Z"\n',
    "none": '# requires-python = ">=3.11"\n',
    "sources": '# dependencies = []\n#\n# [tool.uv.sources]\n# a = { path = "b" }\n',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_version_replaces_what_other_packages_require(header):
    text = f"# Page\n\n```python id=a\n# /// script\n{header}# ///\nprint(1)\n```\n"

    before, after = (
        read_header(one.partition("id=a\n")[2]) for one in (text, with_version(text, "triton==3.5.0"))
    )

    assert after["dependencies"] == ["triton==3.5.0", *before.get("dependencies", [])]
    assert after["tool"]["uv"].pop("override-dependencies") == ["triton==3.5.0"]
    assert after["tool"]["uv"] == before.get("tool", {}).get("uv", {})


@pytest.mark.parametrize(
    "call",
    [
        'get_kernel("org/scale", version=7)',
        "get_kernel('org/scale@v7')",
        'get_kernel("org/scale@main.scale")',
        'get_kernel("org/scale:Scale", revision="main")',
    ],
)
def test_two_versions_of_a_kernel_take_turns_however_a_notebook_asks_for_it(operator, call):
    file, asked = operator / "softmax/impls/mine.md", operator / "asked.txt"
    noted = f"    get_kernel = lambda *a, **more: open({str(asked)!r}, 'a').write(f'{{a[0]}} {{more}}\\n')\n"
    file.write_text(file.read_text().replace("    open(", f"{noted}    {call}\n    open(", 1))
    (operator / "my builds").mkdir()
    versions = ("--against", "org/scale@./my builds", "--with", "org/scale@2", "--processes", "2")

    done = run_kbt(operator, "gate", "softmax/mine", "--env", "current", *versions)

    part = re.search(r"scale(?:@\w+)?([.:]\w+)?", call)[1] or ""
    against, head = f"{operator}/my builds{part} {{}}", f"org/scale@2{part} {{}}"
    assert done.returncode == 0, done.stderr
    assert processes(done) == ["mine.against1", "mine.with1", "mine.with2", "mine.against2"]
    assert asked.read_text().splitlines()[::2] == [against, head, head, against]  # of two workloads


def test_each_of_several_versions_is_compared_with_the_first_by_itself(operator):
    file = operator / "softmax/impls/mine.md"
    scaled = "    get_kernel = lambda name: {'2': 1.0, '3': 1.02, '4': 1.0}[name[-1]]\n"
    scaled += "    record['lat_ms'] = dict(record['lat_ms'], p50=get_kernel('org/scale@1'))\n    open("
    file.write_text(file.read_text().replace("    open(", scaled))
    versions = [part for number in "34" for part in ("--with", f"org/scale@{number}")]
    arguments = ("gate", "softmax/mine", "--env", "current", "--against", "org/scale@2", *versions)

    done, data = run_kbt(operator, *arguments, COLUMNS="150"), run_kbt(operator, *arguments, "--json")

    assert (done.returncode, data.returncode) == (1, 1), done.stderr
    assert processes(done)[:5] == [f"mine.{name}1" for name in ("against", "with", "with2")] + [
        "mine.with22",
        "mine.with2",
    ]
    found = {(row["workload"], row["version"]): row["change"] for row in json.loads(data.stdout)["rows"]}
    assert found == {
        (f"w{number}", f"org/scale@{version}"): change
        for number in range(2)
        for version, change in ((3, "slower"), (4, "same"))
    }
    assert "w0 with org/scale@3" in done.stdout


def test_a_real_kernel_is_measured_beside_its_earlier_version(project):
    commit_all(project)
    file = project / "layer_norm/impls/torch_layer_norm.md"
    file.write_text(file.read_text().replace("return torch.nn", "x = x + 0\n    return torch.nn"))

    smoke = ("--workloads", "smoke", "--processes", "1")
    done = gate(project, *smoke, "--json")

    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert {row["base"]["status"], row["head"]["status"]} <= {"ok", "disturbed"}
    assert row["change"] == "unsure"
    assert row["base"]["ms"] > 0


def test_two_versions_of_a_package_are_compared_with_the_same_notebook(operator, tmp_path):
    for version, value in (("1.0", 1.0), ("2.0", 1.1)):
        wheels = make_wheel(tmp_path / "wheels", "tiny", f"VALUE, VERSION = {value}, {version!r}\n", version)
    file = operator / "softmax/impls/mine.md"
    header = "# /// script\n# dependencies = ['tiny']\n# ///\nimport tiny"
    scaled = "    record['lat_ms'] = dict(record['lat_ms'], p50=tiny.VALUE)\n    record['provenance'] = "
    scaled += "{**record['provenance'], 'packages': {'tiny': tiny.VERSION}}\n    open("
    text = file.read_text().replace("outputs=softmax.jsonl\n", f"outputs=softmax.jsonl\n{header}\n")
    file.write_text(text.replace("    open(", scaled))
    uv = {"UV_FIND_LINKS": str(wheels), "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}

    done = run_kbt(operator, "gate", "softmax/mine", "--with", "tiny==2.0", "--against", "tiny==1.0", **uv)

    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("2 slower (by tiny 1.0 → 2.0), 0 faster")
    assert processes(done)[:3] == ["mine.against1", "mine.with1", "mine.with2"]
