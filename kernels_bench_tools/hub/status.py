"""The closed set of statuses of a request for a kernel, and the classification of exceptions into it."""

from __future__ import annotations

import re
from enum import StrEnum

from kernels_bench_tools.errors import Unsupported


class HubStatus(StrEnum):
    OK = "ok"
    DISABLED = "disabled"
    HUB_UNREACHABLE = "hub-unreachable"
    """No connection, or no response in time."""
    HUB_ERROR = "hub-error"
    """The Hub responded with an error, or with something unexpected."""
    NOT_IN_CACHE = "not-in-cache"
    """Offline, and the cache does not have it."""
    CACHE_INCOMPLETE = "cache-incomplete"
    """Files of the build are missing on disk, and the Hub cannot supply them."""
    FILES_CHANGED = "files-changed"
    """A file of the build differs from the published, downloaded or locked one."""
    NO_SUCH_REPO = "no-such-repo"
    NO_SUCH_REVISION = "no-such-revision"
    NO_SUCH_VERSION = "no-such-version"
    UNTRUSTED_PUBLISHER = "untrusted-publisher"
    NO_BUILD_FOR_SYSTEM = "no-build-for-system"
    ARCH_UNSUPPORTED = "arch-unsupported"
    """There is a build, but not for this GPU."""
    BACKEND_NOT_HERE = "backend-not-here"
    """It was requested for a kind of device that this process does not have."""
    KERNELS_TOO_OLD = "kernels-too-old"
    MISSING_DEPENDENCY = "missing-dependency"
    BAD_METADATA = "bad-metadata"
    IMPORT_FAILED = "import-failed"
    NO_SUCH_LAYER = "no-such-layer"
    """The kernel loads, but has no layer or function of the requested name."""


class HubError(Unsupported):
    """A kernel is not available; ``reason`` is one line without a full stop."""

    def __init__(self, status: HubStatus, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"{reason} [{status}]")


_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/\"'`]+/)+")
# Names of classes or their bases, because huggingface_hub has changed its HTTP library before.
_UNREACHABLE = {"TransportError", "ConnectionError", "TimeoutError", "gaierror"}
_BY_CLASS = {
    "RepositoryNotFoundError": (HubStatus.NO_SUCH_REPO, "the Hub has no kernel {repo}, or it is private"),
    "RevisionNotFoundError": (HubStatus.NO_SUCH_REVISION, "the Hub has no such revision of {repo}"),
    "RemoteEntryNotFoundError": (HubStatus.NO_BUILD_FOR_SYSTEM, "{repo} has no builds"),
}
_BY_MESSAGE = {
    "does not support the current device": (HubStatus.ARCH_UNSUPPORTED, ""),
    "requires kernels>=": (HubStatus.KERNELS_TOO_OLD, ""),
    "requires Python dependency": (HubStatus.MISSING_DEPENDENCY, ""),
    "unsupported kernel dependency": (HubStatus.MISSING_DEPENDENCY, ""),
    "Invalid backend": (HubStatus.BACKEND_NOT_HERE, ""),
    "Cannot parse metadata": (HubStatus.BAD_METADATA, "the metadata of {repo} cannot be read: "),
    "Failed to open": (HubStatus.BAD_METADATA, "the metadata of {repo} cannot be read: "),
}


def classify(error: BaseException, repo: str, otherwise: HubStatus) -> HubError:
    """Return the meaning of ``error``, found in its chain of causes.

    The outermost message can mislead: if the Hub is unreachable, ``kernels`` reports that the publisher could not
    be verified, and advises to trust it. An unknown exception gets the status ``otherwise``.
    """
    if isinstance(error, HubError):
        return error
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and all(link is not known for known in chain):
        chain.append(link)
        link = link.__cause__ or link.__context__
    classes = [{kind.__name__ for kind in type(link).__mro__} for link in chain]
    if unreachable := [link for link, names in zip(chain, classes, strict=True) if names & _UNREACHABLE]:
        return HubError(HubStatus.HUB_UNREACHABLE, f"the Hub cannot be reached: {_one_line(unreachable[-1])}")
    message = str(error)
    codes = (getattr(getattr(link, "response", None), "status_code", None) for link in chain)
    code = next((code for code in codes if isinstance(code, int)), None)
    # An account that is not an organization has no page that could list it as trusted.
    if "not from a trusted publisher" in message or ("publisher trust" in message and code == 404):
        publisher = repo.partition("/")[0]
        reason = f"the Hub does not list {publisher} as a trusted publisher, and trust= does not name it"
        return HubError(HubStatus.UNTRUSTED_PUBLISHER, reason)
    for name, (status, reason) in _BY_CLASS.items():
        if any(name in names for names in classes):
            return HubError(status, reason.format(repo=repo))
    if code is not None:
        return HubError(HubStatus.HUB_ERROR, f"the Hub responded with HTTP {code} for {repo}")
    if "Cannot find a build variant" in message:
        # The message begins with a path of this machine; the reasons of each build follow.
        lines = message.partition(":\n\n")[2].splitlines()
        rejected = "; ".join(line.strip() for line in lines if line.strip())[:600]
        reason = f"no build of {repo} fits this system: {rejected or 'there are none'}"
        return HubError(HubStatus.NO_BUILD_FOR_SYSTEM, reason)
    for text, (status, prefix) in _BY_MESSAGE.items():
        if text in message:
            # The rest of the message is advice to switch the check off.
            line = _one_line(error).partition(" The declared architectures can be")[0]
            return HubError(status, prefix.format(repo=repo) + line)
    if isinstance(error, ModuleNotFoundError) and error.name:
        reason = f"{repo} needs the package {error.name!r}, which is not installed"
        return HubError(HubStatus.MISSING_DEPENDENCY, reason)
    what = f"{repo} cannot be loaded"
    if otherwise is HubStatus.HUB_ERROR:
        error, what = chain[-1], f"{repo} cannot be downloaded"
    return HubError(otherwise, f"{what}: {type(error).__name__}: {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    # Records are published: of a path of this machine only the file's name stays.
    text = _FOLDERS.sub("", re.sub(r"\s+", " ", str(error)).strip())
    return (text or type(error).__name__)[:300]
