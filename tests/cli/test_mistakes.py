"""A mistake of the user is one line that names where it is and what to do; nothing runs and nothing is written."""

import shlex
from pathlib import Path

import pytest
from projects import assert_one_line, contents, git, run_kbt

NOTEBOOK = (
    "---\nbaseline: true\n---\n```python id=benchmark outputs=x.jsonl\nraise SystemExit('it ran')\n```\n"
)
SUITE = """title = "One"
workloads = "smoke"
ours = "triton"
[[kernel]]
name = "LayerNorm"
operator = "layer_norm"
workload = "smoke_S32_D256"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a built-in operator, one of another name, and suites."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in {
        "pyproject.toml": "[tool.kbt]\n",
        "softmax/impls/plain.md": NOTEBOOK,
        "layer_norm/impls/mine.md": NOTEBOOK,
        "operators/gather.py": "",
        "suites/one.toml": SUITE,
        "suites/one.md": "```python id=report outputs=suite.json\n1\n```\n",
        "suites/wrong.toml": SUITE.replace("layer_norm", "layer_nrom"),
        "empty.jsonl": "",
        ".kbt/build.json": '{"version": 0}',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "dangling").symlink_to("nowhere")
    git(folder, "init", "-q")
    return folder


def written(project: Path) -> dict[str, bytes]:
    """Return all files but the lock, which a command may take before it reads what it is given."""
    return {
        name: text for name, text in contents(project).items() if name not in {".kbt/lock", ".kbt/.gitignore"}
    }


@pytest.mark.parametrize(
    ("command", "where", "remedy"),
    [
        ("bild", "kbt: ", "build"),
        ("build --jobs two", "--jobs", "kbt build --help"),
        ("build --mode back", "'--mode': 'back' is not one of", "kbt build --help"),
        ("plan --retries", "kbt plan: ", "--retries"),
        ("build sofmax", "sofmax: ", "softmax"),
        ("build ''", "'': ", "is not a notebook"),
        ("run softmax/impls/plian.md", "plian", "plain"),
        ("run plian", "plian: ", "Did you mean 'plain'?"),
        ("build operators", "operators: ", "contains none"),
        ("run softmax/zzz", "softmax/zzz: ", "softmax/plain"),
        ("run softmax/plain:benchmrk", "benchmrk", "benchmark"),
        ("plan nothing", "nothing: ", "there is no such notebook"),
        ("plan --since nowhere", "revision 'nowhere': ", "no such commit"),
        ("serve --port=0 nosuch", "nosuch: ", "there is no such notebook"),
        ("serve --no-build", "site: ", "kbt build"),
        ("build --output empty.jsonl", "empty.jsonl: ", "is not a folder"),
        ("build --output empty.jsonl/x", "empty.jsonl/x: ", "Not a directory"),
        ("build --output dangling", "dangling: ", "No such file"),
        ("build --output /proc/site", "/proc/site: ", "No such file"),
        ("build --output softmax", "softmax: ", "holds files that kbt did not write"),
        ("selfcheck -o softmax", "softmax: ", "A file to write"),
        ("selfcheck -o empty.jsonl/x.json", "empty.jsonl: ", "Not a directory"),
        ("selfcheck -o /proc/site/x.json", "/proc/site: ", "No such file"),
        ("build --memory-limit 10", "--memory-limit: ", "too little"),
        ("build --memory-limit lots", "--memory-limit: ", "is not a size"),
        ("build --pass-env A=B", "--pass-env: ", "is not a variable name"),
        ("build --workloads smoke,larg", "--workloads larg: ", "no operator has this workload set"),
        (
            "build --workloads random:9:1:cpu+larg",
            "--workloads larg: ",
            "no operator has this workload set",
        ),
        ("build --workloads random:9", "--workloads random:9: ", "random:COUNT:SEED"),
        ("upgrade --to 2999-01-01", "--to 2999-01-01: ", "in the future"),
        ("upgrade --to 2026-02-30", "--to 2026-02-30: ", "is not a date"),
        ("upgrade --harness ../nowhere", "--harness ../nowhere: ", "there is no such package"),
        ("record nowhere.jsonl", "nowhere.jsonl: ", "does not exist"),
        ("record empty.jsonl", "empty.jsonl: ", "no records"),
        ("record", "record: ", "Run `kbt build` first."),
        ("export bencher", "site/report.json: ", "cannot be read"),
        ("compare nothing", "revision 'nothing': ", "no such commit"),
        ("compare pyproject.toml", "pyproject.toml: ", "is not a report"),
        ("gate --against nothing", "revision 'nothing': ", "no such commit"),
        ("gate softmax/plain --against triton==3.5.0", "softmax/impls/plain.md: ", "has no header"),
        ("gate softmax/plain --env current --against triton==3", "triton==3: ", "a separate environment"),
        ("gate softmax/plain --against 'a b==1'", "a b==1: ", "is not a version of a package"),
        ("gate softmax/plain --against org/repo@1", "softmax/impls/plain.md: ", "does not load org/repo"),
        ("gate softmax/plain --against org/repo@./nothing", "org/repo@./nothing: ", "does not exist"),
        ("gate softmax/plain --against nothing.md", "nothing.md: ", "notebook"),
        ("gate softmax/plain --against layer_norm/impls/mine.md", "mine.md: ", "is of another operator"),
        ("run softmax/plain --with triton==3.5.0", "--with: ", "Add --against"),
        ("new implementation sofmax/mine", "sofmax: ", "Did you mean 'softmax'?"),
        ("new implementation layernorm/mine", "layernorm: ", "Did you mean 'layer_norm'?"),
        ("new implementation softmax/Mine!", "softmax/Mine!: ", "lower-case"),
        ("new implementation softmax/plain", "softmax/impls/plain.md: ", "already exists"),
        ("new implementation softmax/mine --from plan", "--from plan: ", "'plain'"),
        ("new operator gather", "operators/gather.py: ", "another name"),
        ("new operator softmax", "softmax/", "already exists"),
        ("new operator rms_norm", "rms_norm: ", "kbt new implementation rms_norm/my_kernel"),
        ("new operator Softmax", "Softmax: ", "lower-case"),
        ("new operator soft-max", "soft-max: ", "lower-case"),
        ("new operator ../softmax", "../softmax: ", "is not a valid operator name"),
        ("new operator ''", "'': ", "is not a valid operator name"),
        (f"new operator {'a' * 101}", "a: ", "at most 100"),
        ("new operator lambda", "lambda: ", "is reserved"),
        ("new operator site", "site: ", "is reserved"),
        ("list --model llama-8b", "--model llama-8b: ", "llama-3.1-405b, "),
        ("list --model tiny.json", "--model tiny.json: ", "llama-3.1-405b, "),
        ("list --model qwen3-8b --phase decode", "--phase decode: ", "prefill-2048, decode-1"),
        ("graph rms_nrm", "rms_nrm: ", "Did you mean "),
        ("suite wrong", "layer_nrom/impls: ", "Did you mean "),
        ("suite on", "on: ", "Did you mean 'one'?"),
        ("suite one --device cuda", "--device cuda: ", "--device cpu"),
        ("suite one --device cpu --cluster tcp://x:1", "--device cpu: ", "with --cluster"),
        ("build --cluster tcp://me:PW@h:9", "cluster tcp://***@h:9: ", "answers (invalid address 'h:9'"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(project: Path, command: str, where: str, remedy: str) -> None:
    before = written(project)

    assert_one_line(run_kbt(project, *shlex.split(command), CUDA_VISIBLE_DEVICES=""), where, remedy)

    assert written(project) == before


@pytest.mark.parametrize(
    "command", ["build", "run a", "suite a", "list", "check", "record", "serve", "clean"]
)
def test_a_folder_that_is_no_project_is_one_line_that_names_init(tmp_path: Path, command: str) -> None:
    assert_one_line(run_kbt(tmp_path, *command.split()), f"kbt: {tmp_path}: ", "`kbt init` creates one")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("verb", "operator", "refused"),
    [("run", "kv_store", True), ("plan", "mine", True), ("plan", "rms_norm", False)],
)
def test_a_mode_that_no_operator_has_is_refused_before_anything_runs(tmp_path, verb, operator, refused):
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators/mine.py").write_text("OPERATOR = Operator(name='mine')\n")
    notebook = tmp_path / operator / "impls/x.md"
    notebook.parent.mkdir(parents=True)
    notebook.write_text(f"```python id=a outputs=x.jsonl\nopen({str(tmp_path / 'ran')!r}, 'w')\n```\n")
    done = run_kbt(tmp_path, verb, f"{operator}/x", "--env", "current", "--mode", "bwd")

    assert ("--mode bwd: " in done.stderr) is refused
    if refused:
        assert_one_line(done, "--mode bwd: ", f"none of the operators ({operator})")
    assert not (tmp_path / "ran").exists()
