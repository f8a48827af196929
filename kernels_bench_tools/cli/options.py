"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Notebooks, folders or OPERATOR/IMPLEMENTATION. [default: all]"),
]
Strict = Annotated[bool, typer.Option("--strict", help="Count cells that are unsupported here as failed.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print a line for each cell that this machine cannot run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the report. [default: site]"),
]
