"""What an exception of the hub's client or of a kernel's import really means."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

from kernels_bench_tools.hub.status import HubError, HubStatus

# Class names, because the hub's client has changed its HTTP library (and may again).
_UNREACHABLE = {
    "ConnectError",
    "ConnectTimeout",
    "ReadTimeout",
    "ReadError",
    "WriteError",
    "PoolTimeout",
    "ProxyError",
    "RemoteProtocolError",
}
_BY_MESSAGE = (
    ("does not support the current device", HubStatus.ARCH_UNSUPPORTED, ""),
    ("requires kernels>=", HubStatus.KERNELS_TOO_OLD, ""),
    ("requires Python dependency", HubStatus.MISSING_DEPENDENCY, ""),
    ("unsupported kernel dependency", HubStatus.MISSING_DEPENDENCY, ""),
    ("Invalid backend", HubStatus.BACKEND_NOT_HERE, ""),
    ("Cannot parse metadata", HubStatus.BAD_METADATA, "the metadata of {repo} cannot be read: "),
    ("Failed to open", HubStatus.BAD_METADATA, "the metadata of {repo} cannot be read: "),
    ("No kernel module found", HubStatus.IMPORT_FAILED, "{repo} has no Python module: "),
)


def classify(error: Exception, repo: str, otherwise: HubStatus) -> HubError:
    """Return what ``error`` means, found by walking its causes.

    The outermost message can mislead: where the hub is unreachable, ``kernels`` says that the publisher could
    not be verified and advises to trust it.

    Args:
        error: What was raised.
        repo: What was asked for, for the reason.
        otherwise: The status of what is not known here.
    """
    if isinstance(error, HubError):
        return error
    chain = list(_chain(error))
    return (
        _of_network(chain)
        or _of_answer(chain, repo)
        or _of_message(error, repo)
        or _of_package(error, repo)
        or HubError(otherwise, _unknown(error, repo, otherwise))
    )


def one_line(error: BaseException) -> str:
    """Return the message of ``error`` in one line of at most 300 characters; its class where it has none."""
    text = re.sub(r"\s+", " ", str(error)).strip()
    return (text or type(error).__name__)[:300]


def _of_network(chain: list[BaseException]) -> HubError | None:
    known = (ConnectionError, TimeoutError, socket.gaierror)
    found = [link for link in chain if isinstance(link, known) or type(link).__name__ in _UNREACHABLE]
    if not found:
        return None
    return HubError(HubStatus.HUB_UNREACHABLE, f"the hub cannot be reached: {one_line(found[-1])}")


def _of_answer(chain: list[BaseException], repo: str) -> HubError | None:
    """Return what the hub said, if it said something."""
    message = str(chain[0])
    publisher = repo.partition("/")[0]
    code = next((code for link in chain if (code := _http_status(link)) is not None), None)
    # An account that is not an organization has no page that could call it trusted.
    if "not from a trusted publisher" in message or ("publisher trust" in message and code == 404):
        reason = f"the hub does not list {publisher} as a trusted publisher, and trust= does not name it"
        return HubError(HubStatus.UNTRUSTED_PUBLISHER, reason)
    names = {type(link).__name__ for link in chain}
    if names & {"RepositoryNotFoundError", "GatedRepoError"}:
        return HubError(HubStatus.NO_SUCH_REPO, f"the hub has no kernel {repo}, or it is not public")
    if "RevisionNotFoundError" in names:
        return HubError(HubStatus.NO_SUCH_REVISION, f"the hub has no such revision of {repo}")
    if names & {"EntryNotFoundError", "RemoteEntryNotFoundError"}:
        return HubError(HubStatus.NO_BUILD_FOR_SYSTEM, f"{repo} has no builds at all")
    if code is not None:
        return HubError(HubStatus.HUB_ERROR, f"the hub answered HTTP {code} for {repo}")
    return None


def _of_message(error: Exception, repo: str) -> HubError | None:
    if "Cannot find a build variant" in str(error):
        return HubError(HubStatus.NO_BUILD_FOR_SYSTEM, _no_build(str(error), repo))
    # What follows is advice to switch the check off.
    line = one_line(error).partition(" The declared architectures can be")[0]
    for text, status, prefix in _BY_MESSAGE:
        if text in str(error):
            return HubError(status, prefix.format(repo=repo) + line)
    return None


def _no_build(message: str, repo: str) -> str:
    """Return why each build was rejected, without the path of this machine that the message begins with."""
    rejected = "; ".join(line.strip() for line in message.partition(":\n\n")[2].splitlines() if line.strip())
    return (
        f"no build of {repo} fits this system: {rejected[:600]}"
        if rejected
        else f"{repo} has no builds at all"
    )


def _of_package(error: Exception, repo: str) -> HubError | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        reason = f"{repo} needs the package {error.name!r}, which is not installed in this environment"
        return HubError(HubStatus.MISSING_DEPENDENCY, reason)
    return None


def _unknown(error: Exception, repo: str, otherwise: HubStatus) -> str:
    what = f"{type(error).__name__}: {one_line(error)}"
    if otherwise is HubStatus.HUB_ERROR:
        return f"the hub's answer for {repo} cannot be used: {what}"
    return f"{repo} does not load: {what}"


def _http_status(error: BaseException) -> int | None:
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code if isinstance(code, int) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
