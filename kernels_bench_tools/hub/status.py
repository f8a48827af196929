"""How asking for a kernel can end: a closed set."""

from __future__ import annotations

from enum import StrEnum

from kernels_bench_tools.errors import Unsupported


class HubStatus(StrEnum):
    """How asking for a kernel ended."""

    OK = "ok"
    DISABLED = "disabled"
    """Hub kernels are switched off."""
    HUB_UNREACHABLE = "hub-unreachable"
    """No connection, or no answer within the deadline."""
    HUB_ERROR = "hub-error"
    """The hub answered, but with an error of its own or with nonsense."""
    NOT_IN_CACHE = "not-in-cache"
    """Offline, and the cache has not got it."""
    CACHE_INCOMPLETE = "cache-incomplete"
    """Files of the build are missing on the disk, and the hub cannot supply them."""
    FILES_CHANGED = "files-changed"
    """A file of the build is not the one that was published or locked."""
    NO_SUCH_REPO = "no-such-repo"
    NO_SUCH_REVISION = "no-such-revision"
    NO_SUCH_VERSION = "no-such-version"
    UNTRUSTED_PUBLISHER = "untrusted-publisher"
    NO_BUILD_FOR_SYSTEM = "no-build-for-system"
    ARCH_UNSUPPORTED = "arch-unsupported"
    """There is a build, but not for this card."""
    BACKEND_NOT_HERE = "backend-not-here"
    """It was asked for on a kind of device that this process has not got."""
    KERNELS_TOO_OLD = "kernels-too-old"
    MISSING_DEPENDENCY = "missing-dependency"
    """A Python package that it needs is not installed."""
    BAD_METADATA = "bad-metadata"
    IMPORT_FAILED = "import-failed"
    NO_SUCH_LAYER = "no-such-layer"
    """The kernel loads, but has no layer or function of the name that was asked for."""


class HubError(Unsupported):
    """A kernel cannot be had here.

    Args:
        status: How it ended.
        reason: One line that names the root of the trouble, without a full stop.
    """

    def __init__(self, status: HubStatus, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"{reason} [{status}]")
