"""Notebooks as all layers know them: where they are in a project, and their front matter."""

from __future__ import annotations

import msgspec

IMPLEMENTATIONS, RESULTS = "impls", "results"
"""Folders of an operator."""


def operator_of(notebook: str) -> str:
    """Return the id of a notebook's operator: the folder that holds ``impls/`` or ``results/``, else empty.

    >>> operator_of("models/llama-3.1-8b/impls/eager.md"), operator_of("index.md")
    ('models/llama-3.1-8b', '')
    """
    *folders, kind, _ = ["", *notebook.split("/")]
    return "/".join(folders).strip("/") if kind == IMPLEMENTATIONS or is_results(kind) else ""


def is_implementation(notebook: str) -> bool:
    """Return whether a notebook measures an implementation: whether it is in ``impls/``."""
    return notebook.split("/")[-2:-1] == [IMPLEMENTATIONS]


def is_results(folder: str) -> bool:
    """Return whether a folder of this name holds combine notebooks: ``results``, or ``results_linux`` of one platform."""
    return folder == RESULTS or folder.startswith(f"{RESULTS}_")


class FrontMatter(msgspec.Struct, kw_only=True):
    title: str = ""
    author: str = ""
    description: str = ""
    """One sentence for tables and tooltips."""
    family: str = ""
    """Origin of an implementation, the same across operators: ``torch``, ``triton``, ``hf-kernels``."""
    baseline: bool = False
    """Whether speed-ups of the operator are relative to this implementation."""
    requires: list[str] = msgspec.field(default_factory=list)
    """Device kinds that the cells can run on, such as ``[cuda]``; empty for all."""
    links: dict[str, str] = msgspec.field(default_factory=dict)
    """Name to URL: source, paper, Hub page."""
    expect: dict[str, str] = msgspec.field(default_factory=dict)
    """Statuses of workloads that are known to be wrong, each with the reason: they do not fail a build."""
    platforms: list[str] | None = None
    """Operating systems that it runs on, in lower case; None for all, an empty list for none."""
    theme: str = "dark"
    custom_css: str = ""
    collapse_code: bool = False
