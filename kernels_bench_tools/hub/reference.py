"""References to kernels: ``organization/name@version:Layer`` and its other forms."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kernels_bench_tools.errors import KbtError

FORMS = (
    "org/repo@3 (or @v3), org/repo@BRANCH, @TAG or @COMMIT, or a folder ./path; "
    "each may end in :Layer or .function"
)
_SELECTOR = r"(?::(?P<layer>[A-Za-z_]\w*)|\.(?P<function>[A-Za-z_]\w*))?"
_HUB = re.compile(
    rf"(?P<repo>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*?)(?:@(?P<pin>.*?))?{_SELECTOR}", re.DOTALL
)
# The dots of ./ and ../ begin no function.
_FOLDER = re.compile(rf"(?P<repo>(?:.*/)?(?:\.{{1,2}}|~)?[^/]*?){_SELECTOR}", re.DOTALL)
# At most six digits: forty are a commit.
_VERSION = re.compile(r"v?(\d{1,6})")
_REVISION = re.compile(r"(?!.*\.\.)\w[\w./+-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class KernelReference:
    """A kernel, as a notebook requests it. One of ``version``, ``revision`` and ``folder`` is set."""

    text: str
    """The reference as it was written."""
    repo: str = ""
    """``organization/name``."""
    version: int | None = None
    revision: str = ""
    """Branch, tag or commit."""
    folder: str = ""
    """Path of a folder on this machine, as it was written."""
    layer: str = ""
    function: str = ""

    @property
    def pin(self) -> str:
        """The normalized version or revision: ``3``, ``main``."""
        return self.revision if self.version is None else str(self.version)

    @property
    def name(self) -> str:
        """The normalized reference, without layer and function."""
        return self.folder or f"{self.repo}@{self.pin}"

    @property
    def is_fixed(self) -> bool:
        """Whether it names one version or a full commit, so that an earlier answer of the Hub is still valid."""
        return self.version is not None or bool(_COMMIT.fullmatch(self.revision))


def parse_reference(
    text: str, version: int | str | None = None, revision: str | None = None
) -> KernelReference:
    """Parse a reference; a ``KbtError`` states that it has none of the :data:`FORMS`, no pin, or two."""
    if not isinstance(text, str):
        raise _mistake(text, "is not a string")
    is_folder = text.startswith((".", "/", "~"))
    match = (_FOLDER if is_folder else _HUB).fullmatch(text)
    if match is None:
        raise _mistake(text, "is not a reference to a kernel")
    layer, function = match["layer"] or "", match["function"] or ""
    if is_folder:
        if version is not None or revision is not None:
            raise _mistake(text, "is a folder, which has no versions")
        return KernelReference(text=text, folder=match["repo"], layer=layer, function=function)
    given = [pin for pin in (match["pin"], version, revision) if pin is not None]
    if not given:
        raise _mistake(text, "has no version", "Add one, such as @1, so that the kernel stays the same")
    if len(given) > 1:
        raise _mistake(text, "has more than one version or revision", "Keep one of them")
    found = KernelReference(text=text, repo=match["repo"], layer=layer, function=function)
    pin = given[0]
    written = str(pin) if isinstance(pin, int | str) and not isinstance(pin, bool) else ""
    if revision is None and (number := _VERSION.fullmatch(written)):
        return replace(found, version=int(number[1]))
    if version is None and _REVISION.fullmatch(written):
        return replace(found, revision=written)
    raise _mistake(text, f"has the invalid version or revision {pin!r}")


def _mistake(text: object, what: str, remedy: str = "") -> KbtError:
    return KbtError(f"get_kernel({text!r})", what, FORMS, remedy)
