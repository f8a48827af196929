"""The command line: its verbs, and how exceptions end it."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from kernels_bench_tools import __version__
from kernels_bench_tools.cli import INTERRUPTED, USER_MISTAKE
from kernels_bench_tools.errors import KbtError

VERBS = {
    "init": "init:init",
    "build": "build:build",
    "run": "run:run_notebook",
    "effect": "effect:effect",
    "choose": "choose:choose",
    "suite": "suite:suite",
    "list": "list:list_notebooks",
    "graph": "graph:graph",
    "check": "check:check",
    "plan": "plan:plan",
    "new": "new:new",
    "record": "record:record",
    "prefetch": "prefetch:prefetch",
    "hub": "hub:hub",
    "selfcheck": "selfcheck:selfcheck",
    "serve": "serve:serve",
    "workers": "workers:workers",
    "cache": "cache:cache",
    "upgrade": "upgrade:upgrade",
    "clean": "clean:clean",
}
"""Verb to module of ``cli`` and function or app in it, in the order of the help.

Only the module of the given verb is imported: importing all takes longer than a build in which nothing changed.
"""

_HANDLES_INTERRUPT = {"serve"}
"""Verbs that usually end with Ctrl-C and print their own message."""

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_USABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
    *(errno.ELOOP, errno.ENAMETOOLONG),
}

_HELP = """Benchmark GPU kernels and find out which one to use.

    Notebooks measure kernels and write records. `kbt build` runs the cells whose inputs changed and publishes the
    report to site/.

    To start: `kbt init` in an empty folder or in your repository, then `kbt build`, and open site/index.html. To add
    an implementation: `kbt new implementation layer_norm/my_kernel`, edit the notebook, `kbt run layer_norm/my_kernel`.

    Exit codes: 0 all right, or unsupported here; 1 something that was run, measured or checked is wrong or failed; 2 a
    mistake in arguments, settings or notebooks; 130 interrupted.
    """


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
    verbs = arguments[:1] if arguments and arguments[0] in VERBS else VERBS
    app = typer.Typer(
        name="kbt",
        no_args_is_help=True,
        add_completion=verbs is VERBS,  # needs all verbs, and takes time to set up
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
        help=_HELP,
    )
    app.callback()(_options)
    for verb in verbs:
        module, _, name = VERBS[verb].partition(":")
        found = getattr(import_module(f"kernels_bench_tools.cli.{module}"), name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=verb)
        else:
            app.command(verb)(found)
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
        print(
            "kbt: interrupted. Finished results are kept. Run the same command to continue.", file=sys.stderr
        )
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended.
        sys.stderr.close()
        return 0
    except OSError as error:
        where = error.filename2 or error.filename
        if error.errno in _DISK_FULL:
            what, expected = f"cannot be written ({error.strerror})", ""
            remedy = "Free some space and run the same command again. Finished results are kept"
        elif error.errno in _NOT_USABLE and where:
            what = f"cannot be used ({error.strerror})"
            expected, remedy = (
                "A file or folder that you may read and write",
                "Change its mode, or move it away",
            )
        else:
            raise
        print("kbt:", KbtError(str(where or "the disk"), what, expected, remedy), file=sys.stderr)
        return USER_MISTAKE


def _show_usage_mistake(error: typer.TyperException) -> int:
    """Print in one line what is wrong with the arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return 0  # the help has been printed
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "kbt"
    what = error.format_message().replace("Value error, ", "")  # before the message of a choice
    print(KbtError(command, what, "", f"See `{command} --help`"), file=sys.stderr)
    return USER_MISTAKE
