"""Kernels from the Hugging Face Hub, or the true reason why one cannot be had."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from kernels_bench_tools.errors import KbtError, Unsupported

OFF_VALUES = {"0", "OFF", "NO", "FALSE"}
"""Values of ``USE_HUB_KERNELS`` that switch hub kernels off."""

# Class names, because the hub's client has changed its HTTP library (and may again).
_UNREACHABLE = {"ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError"}
_OFFLINE = {"OfflineModeIsEnabled", "LocalEntryNotFoundError", "IncompleteSnapshotError"}


def get_kernel(
    repo: str, *, version: int | None = None, revision: str | None = None, deadline_s: float = 60.0
) -> ModuleType:
    """Return the kernel of a hub repository as a module.

    Args:
        repo: ``"organization/name"``.
        version: Major version; either this or ``revision`` is needed, so that the same kernel comes
            back next year.
        revision: Branch, tag or commit.
        deadline_s: Seconds after which a hub that does not answer is given up.

    Raises:
        Unsupported: It cannot be had here; the reason is one line and names the root of the trouble.
        KbtError: No version was asked for, or both were.
    """
    if (version is None) == (revision is None):
        raise KbtError(
            f"get_kernel({repo!r})",
            "has no version" if version is None else "has both a version and a revision",
            "Exactly one of version= and revision=",
            "Add version=1, say",
        )
    switch = os.environ.get("USE_HUB_KERNELS", "")
    if switch.upper() in OFF_VALUES:
        raise Unsupported(f"hub kernels are switched off (USE_HUB_KERNELS={switch})")
    try:
        from kernels import get_kernel as fetch
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"needs the package {error.name!r}, which is not installed in this environment"
        ) from error
    pin = {"version": version} if revision is None else {"revision": revision}
    return _within(deadline_s, lambda: fetch(repo, **pin), repo)


def _within(deadline_s: float, fetch: Callable[[], Any], repo: str) -> ModuleType:
    """Call ``fetch`` in a thread of its own and leave it behind if it takes too long.

    The hub's client has no timeout, and a signal would not interrupt a name lookup.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(fetch())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name=f"get_kernel {repo}", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not outcome:
        raise Unsupported(f"the hub did not answer within {deadline_s:g} s")
    if isinstance(outcome[0], Exception):
        raise Unsupported(reason(outcome[0], repo)) from outcome[0]
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    module: ModuleType = outcome[0]
    return module


def reason(error: BaseException, repo: str) -> str:
    """Return in one line why loading ``repo`` failed, found by walking the exception's causes.

    The outermost message can mislead: where the hub is unreachable, ``kernels`` says that the
    publisher could not be verified and advises to trust it.
    """
    chain = list(_chain(error))
    names = {type(link).__name__ for link in chain}
    network = [link for link in chain if _is_network(link)]
    if "OfflineModeIsEnabled" in names or _offline_message(str(error)) or (names & _OFFLINE and not network):
        return f"{repo} is not in the local cache, and the hub is switched off or out of reach"
    if network:
        return f"the hub cannot be reached: {_line(network[-1])}"
    for link in chain:
        if type(link).__name__ == "RepositoryNotFoundError":
            return f"the hub has no kernel {repo}, or it is not public"
        if type(link).__name__ == "RevisionNotFoundError":
            return f"the hub has no such revision of {repo}"
        status = getattr(getattr(link, "response", None), "status_code", None)
        if status is not None:
            return f"the hub answered HTTP {status} for {repo}"
    if isinstance(error, FileNotFoundError) and "build variant" in str(error):
        return f"no build of {repo} fits this system: {_line(error)}"
    if isinstance(error, ModuleNotFoundError):
        return f"{repo} needs the package {error.name!r}, which is not installed in this environment"
    return f"{repo} does not load: {_line(error)}"


def _is_network(error: BaseException) -> bool:
    known = (ConnectionError, TimeoutError, socket.gaierror)
    return isinstance(error, known) or type(error).__name__ in _UNREACHABLE


def _offline_message(message: str) -> bool:
    return "not available in the local cache" in message or "Cannot find a local snapshot" in message


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _line(error: BaseException) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip()
    return (text or type(error).__name__)[:300]
