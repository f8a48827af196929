"""Options of verbs: those that several share, and how the parameters of a verb become options."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from inspect import cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import OptionInfo

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Notebooks, folders or OPERATOR/IMPLEMENTATION. [default: all]"),
]
Strict = Annotated[bool, typer.Option("--strict", help="Count unsupported cells as failed.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Output folder of the report. [default: site]"),
]
_DESCRIBED = re.compile(r"^ {4}(\w+)(?: \((\S+)\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)
"""``name (PLACEHOLDER): Text`` of a parameter, whose further lines are indented twice."""


def documented(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Let the help of a verb's options be what its docstring says of the parameters below ``Args:``.

    A parameter without an own ``typer.Option`` or ``typer.Argument`` becomes an option of its name.
    """
    text, _, described = cleandoc(verb.__doc__ or "").partition("Args:\n")
    own = signature(verb, eval_str=True)
    parameters = dict(own.parameters)
    for name, placeholder, words in _DESCRIBED.findall(described):
        annotation = parameters[name].annotation
        kind, *given = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        names = [f"--{name.replace('_', '-')}"] if kind is bool else []  # without it there is also --no-NAME
        option: OptionInfo = copy(given[0]) if given else typer.Option(*names)
        option.metavar, option.help = placeholder or option.metavar, " ".join(words.split())
        option.show_default = option.show_default and "[default: " not in words
        parameters[name] = parameters[name].replace(annotation=Annotated[kind, option])
    verb.__doc__ = text
    vars(verb)["__signature__"] = own.replace(parameters=[*parameters.values()])
    return verb
