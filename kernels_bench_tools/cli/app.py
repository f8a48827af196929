"""The verbs, joined; and what becomes of an exception."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kernels_bench_tools import __version__
from kernels_bench_tools.cli import INTERRUPTED, USER_MISTAKE
from kernels_bench_tools.cli.build import build
from kernels_bench_tools.cli.check import check
from kernels_bench_tools.cli.clean import clean
from kernels_bench_tools.cli.listing import list_notebooks
from kernels_bench_tools.cli.new import new
from kernels_bench_tools.cli.prefetch import prefetch
from kernels_bench_tools.cli.record import record
from kernels_bench_tools.cli.run import run_notebook
from kernels_bench_tools.cli.selfcheck import selfcheck
from kernels_bench_tools.cli.serve import serve
from kernels_bench_tools.errors import KbtError

app = typer.Typer(
    name="kbt",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Find out which GPU kernel to use.

    Notebooks measure kernels and leave records; `kbt build` runs what changed and publishes the report.

    A first session: `kbt build`, then open site/index.html; `kbt run layer_norm/torch_layer_norm`;
    `kbt new implementation layer_norm/mine`.
    """,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kbt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("build")(build)
app.command("run")(run_notebook)
app.command("list")(list_notebooks)
app.command("check")(check)
app.add_typer(new, name="new")
app.command("record")(record)
app.command("prefetch")(prefetch)
app.command("selfcheck")(selfcheck)
app.command("serve")(serve)
app.command("clean")(clean)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; a user's mistake is one line on stderr."""
    try:
        return int(app(list(arguments), prog_name="kbt", standalone_mode=False) or 0)
    except typer.TyperException as error:
        return _show_usage_mistake(error)
    except KbtError as error:
        print(f"kbt: {error}", file=sys.stderr)
        return USER_MISTAKE
    except (KeyboardInterrupt, typer.Abort):
        print("kbt: interrupted. What was finished is kept. Run the same command to go on.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has what it wanted.
        sys.stderr.close()
        return 0


def _show_usage_mistake(error: typer.TyperException) -> int:
    """Say in one line what is wrong with the arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return 0  # the help has been printed
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "kbt"
    print(KbtError(command, error.format_message(), "", f"See `{command} --help`"), file=sys.stderr)
    return USER_MISTAKE
