"""The command line: its verbs, and how exceptions end it."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.core import TyperGroup

from kernels_bench_tools import __version__
from kernels_bench_tools.cli import EXIT_CODES, INTERRUPTED, USER_MISTAKE
from kernels_bench_tools.cli.options import documented
from kernels_bench_tools.errors import KbtError

PANELS = {
    "Start": ("init", "new", "check"),
    "Measure": ("run", "plan", "build", "serve", "record", "import"),
    "Decide": ("list", "choose", "suite", "graph", "effect", "history", "compare", "gate", "export"),
    "Machines, kernels and packages": ("selfcheck", "hub", "upgrade", "clean"),
}
"""The verbs as the help lists them, in the order of their use."""
VERBS = [verb for verbs in PANELS.values() for verb in verbs]
_PLACES = {
    "run": "run.run_notebook",
    "list": "list.list_notebooks",
    "import": "importing.importing",
    "history": "compare.history",
    "export": "compare.export",
    "init": "new.init",
}
"""Module in ``cli`` and function of verbs whose functions are not called like them, or not in a module of their name."""

_HANDLES_INTERRUPT = {"serve"}
"""Verbs that usually end with Ctrl-C and print their own message."""

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_HELP = """Benchmark GPU kernels and find out which one to use.

    Notebooks measure kernels and write records. A build runs the cells whose inputs changed and publishes the report.

    To start, in an empty folder or in your repository: `kbt init`, then `kbt build`, and open site/index.html. To add
    an implementation: `kbt new implementation layer_norm/my_kernel`, edit the notebook, `kbt run layer_norm/my_kernel`.
    """
_EXIT_CODES = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}."


class _InOrder(TyperGroup):
    """Lists groups of commands, such as ``new``, among the others."""

    def list_commands(self, _: object) -> list[str]:
        return [verb for verb in VERBS if verb in self.commands]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kbt {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def find_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the command with the given verb only, or with all verbs if there is none, as for the help."""
    # Importing all modules takes longer than a build in which nothing changed.
    wanted = arguments[:1] if arguments and arguments[0] in VERBS else VERBS
    app = typer.Typer(
        name="kbt",
        cls=_InOrder,
        no_args_is_help=True,
        add_completion=wanted is VERBS,  # needs all verbs, and takes time to set up
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        help=_HELP,
        epilog=_EXIT_CODES,
    )
    app.callback()(_options)
    for panel, verbs in PANELS.items():
        for verb in (verb for verb in verbs if verb in wanted):
            module, name = _PLACES.get(verb, f"{verb}.{verb}").split(".")
            command = getattr(import_module(f"kernels_bench_tools.cli.{module}"), name)
            if isinstance(command, typer.Typer):
                for inner in command.registered_commands:
                    assert inner.callback is not None
                    inner.callback = documented(inner.callback)
                app.add_typer(command, name=verb, rich_help_panel=panel)
            else:
                app.command(verb, rich_help_panel=panel, epilog=_EXIT_CODES)(documented(command))
    return app


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; a mistake of the user is one line on stderr."""
    try:
        code = int(app(list(arguments), prog_name="kbt", standalone_mode=False) or 0)
        if code == INTERRUPTED and arguments[0] not in _HANDLES_INTERRUPT:
            raise KeyboardInterrupt  # typer returns it as an exit code
        return code
    except typer.TyperException as error:
        return _show_usage_mistake(error)
    except KbtError as error:
        print(f"kbt: {error}", file=sys.stderr)
        return USER_MISTAKE
    except (KeyboardInterrupt, typer.Abort):
        return end_interrupted(arguments)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended.
        sys.stderr.close()
        return 0
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | RecursionError) and "new thread" not in str(error):
            raise
        what = f"not enough memory, threads or stack ({error or type(error).__name__})"
        remedy = "Free memory, end processes, or raise `ulimit`. Finished results are kept"
        print("kbt:", KbtError(" ".join(["kbt", *arguments[:1]]), what, "", remedy), file=sys.stderr)
        return USER_MISTAKE
    except OSError as error:
        where, why = error.filename2 or error.filename or "the current folder", error.strerror or error
        if error.errno in _DISK_FULL:
            what, expected = f"cannot be written ({why})", ""
            remedy = "Free disk space and run the command again. Finished results are kept"
        elif error.errno == errno.ENOENT:
            what, expected = f"no longer exists ({why})", "A folder that exists while the command runs"
            remedy = "Change to an existing folder and run the command again"
        else:
            what, expected = f"cannot be used ({why})", "A readable and writable file or folder"
            remedy = "Change its permissions, rename it or move it away"
        print("kbt:", KbtError(str(where), what, expected, remedy), file=sys.stderr)
        return USER_MISTAKE


def end_interrupted(arguments: Sequence[str]) -> int:
    """Say that a command was interrupted, whose ``--json`` is then an object that says so; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again, it could only spoil how the command ends
    print("kbt: interrupted. Finished results are kept. Run the command again to continue.", file=sys.stderr)
    if "--json" in arguments:
        print('{"interrupted": true}')
    return INTERRUPTED


def _show_usage_mistake(error: typer.TyperException) -> int:
    """Print in one line what is wrong with the arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return 0  # the help has been printed
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "kbt"
    what = error.format_message().replace("Value error, ", "")  # before the message of a choice
    print(KbtError(command, what, "", f"See `{command} --help`"), file=sys.stderr)
    return USER_MISTAKE
