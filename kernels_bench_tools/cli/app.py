"""The verbs, joined; and what becomes of an exception."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from kernels_bench_tools import __version__
from kernels_bench_tools.cli import INTERRUPTED, USER_MISTAKE
from kernels_bench_tools.errors import KbtError

VERBS = {
    "build": "build:build",
    "run": "run:run_notebook",
    "suite": "suite:suite",
    "list": "listing:list_notebooks",
    "check": "check:check",
    "plan": "plan:plan",
    "new": "new:new",
    "record": "record:record",
    "prefetch": "prefetch:prefetch",
    "selfcheck": "selfcheck:selfcheck",
    "serve": "serve:serve",
    "workers": "workers:workers",
    "cache": "cache:cache",
    "upgrade": "upgrade:upgrade",
    "clean": "clean:clean",
}
"""Each verb with the module of ``cli`` and the name in it that does it, in the order of the help.

A module is imported when its verb is asked for: all of them take longer than a build in which nothing changed.
"""

_OWN_LAST_WORDS = {"serve"}
"""Verbs that Ctrl-C is the usual end of, and that say so themselves."""

_DISK_TAKES_NO_MORE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}

_HELP = """Find out which GPU kernel to use.

    Notebooks measure kernels and leave records; `kbt build` runs what changed and publishes the report.

    A first session: `kbt build`, then open site/index.html; `kbt run layer_norm/torch_layer_norm`;
    `kbt new implementation layer_norm/mine`.
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
    """Return the command with the verb that the arguments begin with, or else with all, which help names."""
    first = arguments[0] if arguments else ""
    return make_app([first] if first in VERBS else VERBS)


def make_app(verbs: Iterable[str]) -> typer.Typer:
    """Return the command with these of ``VERBS``.

    Raises:
        ModuleNotFoundError: A package of the extra `report` is missing.
    """
    app = typer.Typer(
        name="kbt",
        no_args_is_help=True,
        add_completion=False,
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
    """Run one command and return its exit code; a user's mistake is one line on stderr."""
    try:
        code = int(app(list(arguments), prog_name="kbt", standalone_mode=False) or 0)
        if code == INTERRUPTED and arguments[0] not in _OWN_LAST_WORDS:
            raise KeyboardInterrupt  # typer has made an exit code of it
        return code
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
    except OSError as error:
        if error.errno not in _DISK_TAKES_NO_MORE:
            raise
        print(f"kbt: {_disk_mistake(error)}", file=sys.stderr)
        return USER_MISTAKE


def _disk_mistake(error: OSError) -> KbtError:
    """Say what a disk that takes no more means."""
    where = str(error.filename2 or error.filename or "the disk")
    remedy = "Make room and run the same command again. What was finished is kept"
    return KbtError(where, f"cannot be written ({error.strerror})", "", remedy)


def _show_usage_mistake(error: typer.TyperException) -> int:
    """Say in one line what is wrong with the arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return 0  # the help has been printed
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "kbt"
    print(KbtError(command, error.format_message(), "", f"See `{command} --help`"), file=sys.stderr)
    return USER_MISTAKE
