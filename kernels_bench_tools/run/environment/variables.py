"""Environment variables: what a cell and uv are given."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernels_bench_tools.run.environment.allowed import allowed_variables


def user_cache() -> Path:
    """Return the folder for what all of this user's builds share."""
    return _cache_home(os.environ) / "kbt"


def uv_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for uv: pip's indexes stand in where uv's own are not set."""
    variables = dict(environ)
    # An active environment is not the cell's; uv would warn, or use it.
    variables.pop("VIRTUAL_ENV", None)
    variables.update(_from_pip(environ))
    variables.setdefault("UV_NO_PROGRESS", "1")
    return variables


def cell_variables(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of every cell: a home of its own, shared caches, and no credentials.

    A fresh home keeps one machine's settings, and the passwords in ``~/.netrc`` and the like, out of a
    measurement. What is only a cache, or downloads gigabytes, stays where the user's own programs have it.
    """
    variables = {**allowed_variables(environ), **cache_variables(environ)}
    variables["HOME"] = str(home)
    # Beside the hub's cache, where its client would look, is the user's token.
    variables["HF_TOKEN_PATH"] = str(home / "token")
    variables["PYTHONUNBUFFERED"] = "1"
    variables["PYTHONNOUSERSITE"] = "1"
    # A crash then says in which line.
    variables.setdefault("PYTHONFAULTHANDLER", "1")
    return variables


def cache_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the caches which cells share with the user's own programs."""
    cache, user = _cache_home(environ), _home(environ)
    shared = {
        "UV_CACHE_DIR": cache / "uv",
        "UV_PYTHON_INSTALL_DIR": _data_home(environ) / "uv" / "python",
        "HF_HOME": cache / "huggingface",
        "TRITON_CACHE_DIR": user / ".triton" / "cache",
        "TORCHINDUCTOR_CACHE_DIR": Path(tempfile.gettempdir()) / f"torchinductor_{_user_name()}",
    }
    variables = {name: environ.get(name) or str(path) for name, path in shared.items()}
    # Never the user's own folder: a matplotlibrc there would change the figures.
    return variables | {"MPLCONFIGDIR": str(cache / "kbt" / "matplotlib")}


def _from_pip(environ: Mapping[str, str]) -> dict[str, str]:
    translated = {}
    if links := environ.get("PIP_FIND_LINKS", "").split():
        translated["UV_FIND_LINKS"] = ",".join(links)
    if index := environ.get("PIP_INDEX_URL", "").strip():
        translated["UV_DEFAULT_INDEX"] = index
    if extra := environ.get("PIP_EXTRA_INDEX_URL", "").split():
        translated["UV_INDEX"] = " ".join(extra)
    older = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}
    own = {name for name in translated if environ.get(name) or environ.get(older.get(name, ""))}
    return {name: value for name, value in translated.items() if name not in own}


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _cache_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or _home(environ) / ".cache")


def _data_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or _home(environ) / ".local" / "share")


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in a container
        return str(os.getuid())
