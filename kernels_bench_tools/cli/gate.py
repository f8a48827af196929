"""``kbt gate``: two or more versions of implementations, measured in one session."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.compare import BAD, print_steps
from kernels_bench_tools.cli.output import note, notebook_records, print_failures
from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.git import Repository
from kernels_bench_tools.notebooks.header import parse_requirement, split_header, with_version
from kernels_bench_tools.notebooks.project import Project, find_project_of
from kernels_bench_tools.records.build import BuildRun
from kernels_bench_tools.records.notebook import is_implementation, operator_of
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, ChangeKind
from kernels_bench_tools.results.history.causes import RowName, measurement_of, rows_of
from kernels_bench_tools.results.history.changes import TIMED, Step, decide_changes
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.text.words import plural

_KERNEL = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<pin>[\w+-][\w./+-]*|[./][^\"'\\\n]*)")
"""A kernel of the Hub at a version, a branch, a tag or a commit, or in a folder, which begins with a dot or a slash."""


@takes_build_options("env workloads mode processes memory_limit pass_env")
def gate(
    paths: opt.Paths = None,
    against: Annotated[str, typer.Option()] = "origin/main",
    heads: Annotated[list[str] | None, typer.Option("--with")] = None,
    *,
    options: BuildOptions,
    json: opt.Json = False,
    markdown: bool = False,
) -> int:
    """Measure two or more versions of notebooks in one session; fail if one is slower.

    The processes of all versions take turns on one device, with the current operator and harness. What seems to have
    changed is measured again in fresh processes, and counts only if it changes again. Nothing is stored or published.

    Args:
        paths (PATH): Notebooks, folders or OPERATOR/IMPLEMENTATION. [default: those that differ from the other version]
        against (REV): Version to compare with: a Git revision, a version of a package such as `triton==3.5.0` or of a Hub
            kernel (`org/repo@1`, `org/repo@./folder`), or another notebook of the operator (FILE.md).
        heads (VERSION): Compare this version with --against, instead of the current notebooks. Repeatable.
        markdown: Print Markdown for a comment on a pull request.
    """
    slower, code = measure_versions(paths or [], against, heads or [], options, json=json, markdown=markdown)
    return FAILURE if slower else code


def measure_versions(
    paths: list[str],
    against: str,
    heads: Sequence[str],
    options: BuildOptions,
    *,
    json: bool = False,
    markdown: bool = False,
) -> tuple[bool, int]:
    """Measure as :func:`gate` says, and print it; return whether one is slower, and the exit code of its cells."""
    project = find_project_of(paths)
    if options.environment == "current" and (
        package := next((v for v in (against, *heads) if "==" in v), "")
    ):
        what, expected = "needs a separate environment", "`--env uv`, or a revision"
        raise ProjectError(package, what, expected)
    names = [project.relative(path) for path in project.find_notebooks(paths)]
    now = {name: read_file(project.root / name) for name in names if is_implementation(name)}
    base = _versions(project, now, against)
    now = {name: text for name, text in now.items() if name in base and (paths or base[name] != text)}
    if not now:
        note(f"no notebook differs from {against}")
        print_steps(project, [], json=json, markdown=markdown)
        return False, 0
    heads = [*dict.fromkeys(heads)]
    texts = [base, *(_versions(project, now, head) for head in heads)]
    labels = ["against", *(f"with{number if number > 1 else ''}" for number in range(1, len(texts)))]
    sides = {
        name: [*(f"{name[:-3]}.{label}.md" for label in labels), *(() if heads else (name,))] for name in now
    }
    variants = {
        path: version[name]
        for name, paths in sides.items()
        for path, version in zip(paths, texts, strict=False)
        if name in version
    }
    both = replace(project, variants=variants)
    options = replace(options, rerun=True, aside=True, processes=options.processes or FEWEST_PROCESSES)

    def measure(names: Collection[str]) -> tuple[Sequence[Step], BuildRun]:
        notebooks = [side for name in names for side in sides[name] if side in {name, *variants}]
        result = build(both, notebooks, options, PlainProgress())
        return decide_changes(
            [step for name in names for step in _steps(both, result, name, sides[name], heads)]
        ), result

    steps, result = measure(sides)
    code = print_failures(result, strict=False)
    changed = {step.row[:2] for step in steps if step.kind in TIMED}
    again = [name for name in sides if (operator_of(name), PurePosixPath(name).stem) in changed]
    if again and not code:
        note(f"measuring {plural(len(again), 'notebook')} again, since times seem to differ")
        kinds = {step.row: step.kind for step in measure(again)[0]}
        for step in steps:
            if step.kind in TIMED and kinds.get(step.row) is not step.kind:
                step.kind = ChangeKind.SAME
    print_steps(project, steps, json=json, markdown=markdown)
    return any(step.kind in BAD for step in steps), code


def _versions(project: Project, texts: dict[str, bytes], version: str) -> dict[str, bytes]:
    """Return notebooks as they were in a revision, as far as it has them, or with a version of a package or a kernel.

    With the path of a notebook, that one in place of each.
    """
    if kernel := _KERNEL.fullmatch(version):
        return {name: _with_kernel(name, text.decode(), **kernel.groupdict()) for name, text in texts.items()}
    if version.endswith(".md"):
        (path, *_) = project.find_notebooks([version])
        if other := next(
            (name for name in texts if operator_of(name) != operator_of(project.relative(path))), ""
        ):
            raise ProjectError(
                version, f"is of another operator than {other}", "A notebook of the same operator"
            )
        return dict.fromkeys(texts, read_file(path))
    if "==" not in version:
        repository = Repository(project.root)
        files = repository.files(repository.resolve(version))
        known = {name: files[name] for name in texts if name in files}
        return dict(zip(known, repository.read([*known.values()]), strict=True))
    if not parse_requirement(version):
        raise ProjectError(version, "is not a version of a package", "Such as triton==3.5.0")
    for name, text in texts.items():
        if not split_header(text.decode(errors="replace"))[1]:
            raise ProjectError(name, f"has no header for {version}", "A cell with `# /// script`")
    return {name: with_version(text.decode(), version).encode() for name, text in texts.items()}


def _with_kernel(name: str, text: str, repo: str, pin: str) -> bytes:
    """Return a notebook that gets the kernel at this pin, whichever it asks for."""
    quoted = rf"(?P<quote>[\"']){re.escape(repo)}(?:@[^\"'\n]*?)?(?P<part>(?::\w+|\.[A-Za-z_]\w*)?(?P=quote))"
    reference = f"{repo}@{pin}"
    if pin[0] in "./":  # of the command; in a notebook it would be of the notebook's folder
        if not (folder := Path(pin).resolve()).is_dir():
            raise ProjectError(
                reference, "the folder does not exist", "A folder as `kbt hub build` writes it"
            )
        reference = str(folder)
    pinned = rf"{quoted}(?:\s*,\s*(?:version|revision)\s*=\s*[^,)\s]+)?"
    changed, count = re.subn(pinned, rf"\g<quote>{reference}\g<part>", text)
    if not count:
        raise ProjectError(name, f"does not load {repo}", f'A call such as get_kernel("{repo}", version=1)')
    return changed.encode()


def _steps(
    project: Project, result: BuildRun, name: str, sides: Sequence[str], versions: Sequence[str]
) -> list[Step]:
    base, *heads = (rows_of(notebook_records(project, result, side)) for side in sides)
    row = RowName(operator_of(name), PurePosixPath(name).stem, result.device.slug, "")
    return [
        Step(
            row._replace(workload=workload, version=version),
            measurement_of(base[workload]) if workload in base else None,
            measurement_of(head[workload]) if workload in head else None,
        )
        for workload in dict.fromkeys(chain(base, *heads))
        for version, head in zip(versions if len(heads) > 1 else [""], heads, strict=True)
    ]
