"""What may be asked for: ``organization/name@version:Layer`` and its relatives."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kernels_bench_tools.errors import KbtError

FORMS = (
    "org/repo@3 (or @v3), org/repo@>=1,<3, org/repo@BRANCH, @TAG or @COMMIT, or a folder ./path; "
    "each may end in :Layer or .function"
)
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*")
_SELECTOR = re.compile(r"(?P<rest>.*?)(?P<kind>[:.])(?P<name>[A-Za-z_]\w*)")
# At most six digits: forty are a commit.
_VERSION = re.compile(r"v?(\d{1,6})")
_BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*v?(\d{1,6})\s*")
_REVISION = re.compile(r"\w[\w./+-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Reference:
    """A kernel, as a notebook asks for it. One of ``version``, ``bounds``, ``revision`` and ``folder`` is set."""

    text: str
    """As it was written."""
    repo: str = ""
    """``organization/name``."""
    version: int | None = None
    bounds: tuple[tuple[str, int], ...] = ()
    """Constraints over major versions, such as ``((">=", 1), ("<", 3))``."""
    revision: str = ""
    """Branch, tag or commit."""
    folder: str = ""
    """Path of a folder on this machine, as it was written."""
    layer: str = ""
    function: str = ""

    @property
    def pin(self) -> str:
        """What was asked of the repository, in one spelling: ``3``, ``>=1,<3``, ``main``."""
        if self.version is not None:
            return str(self.version)
        return ",".join(f"{sign}{number}" for sign, number in self.bounds) or self.revision

    @property
    def name(self) -> str:
        """The reference in one spelling, without layer and function."""
        return self.folder or f"{self.repo}@{self.pin}"

    @property
    def requested(self) -> str:
        """The reference as records show it: as it was written, with its pin."""
        return self.text if self.folder or "@" in self.text else self.name

    @property
    def commit(self) -> str:
        """The revision, if it is a whole commit; else empty."""
        return self.revision if _COMMIT.fullmatch(self.revision) else ""

    @property
    def is_fixed(self) -> bool:
        """Whether it names one version or commit, so that an earlier answer of the hub still holds."""
        return self.version is not None or bool(self.commit)

    def admits(self, version: int) -> bool:
        """Return whether a major version is what was asked for."""
        if self.version is not None:
            return version == self.version
        return bool(self.bounds) and all(_compare(version, sign, number) for sign, number in self.bounds)


def parse_reference(text: str, version: int | str | None = None, revision: str | None = None) -> Reference:
    """Return what ``text`` asks for.

    Args:
        text: One of :data:`FORMS`; without a pin if one of the others is given.
        version: A major version or a constraint such as ``">=1,<3"``.
        revision: A branch, tag or commit.

    Raises:
        KbtError: It is none of the forms, has no pin, or has two.
    """
    if not isinstance(text, str):
        raise _mistake(text, "is not a string")
    if text.startswith((".", "/", "~")):
        if version is not None or revision is not None:
            raise _mistake(text, "is a folder, which has no versions")
        return _parse_folder(text)
    head, at, tail = text.partition("@")
    pin, (layer, function) = _split_selector(tail if at else head)
    repo = head if at else pin
    if not _REPO.fullmatch(repo):
        raise _mistake(text, "is not a reference to a kernel")
    given = [one for one in (pin if at else None, version, revision) if one is not None]
    if not given:
        raise _mistake(text, "has no version", "Add @1, say, so that the same kernel comes back next year")
    if len(given) > 1:
        raise _mistake(text, "has more than one version or revision", "Keep one of them")
    asked = Reference(text=text, repo=repo, layer=layer, function=function)
    return _with_pin(asked, given[0], version_only=version is not None, revision_only=revision is not None)


def _with_pin(asked: Reference, pin: int | str, *, version_only: bool, revision_only: bool) -> Reference:
    if isinstance(pin, bool) or not isinstance(pin, int | str) or (isinstance(pin, int) and pin < 0):
        raise _mistake(asked.text, f"has the version {pin!r}")
    written = str(pin)
    if revision_only and _REVISION.fullmatch(written) and ".." not in written:
        return replace(asked, revision=written)
    if not revision_only and (match := _VERSION.fullmatch(written)):
        return replace(asked, version=int(match[1]))
    bounds = [_BOUND.fullmatch(part) for part in written.split(",")]
    if not revision_only and all(bounds):
        return replace(asked, bounds=tuple((bound[1], int(bound[2])) for bound in bounds if bound))
    if version_only or revision_only or not _REVISION.fullmatch(written) or ".." in written:
        raise _mistake(asked.text, f"has {written!r} for a version or revision")
    return replace(asked, revision=written)


def _parse_folder(text: str) -> Reference:
    folder, colon, name = text.rpartition(":")
    if colon and name.isidentifier():
        return Reference(text=text, folder=folder, layer=name)
    # A dot in the last part of a path is a function's, unless nothing would be left in front of it.
    rest, (_, function) = _split_selector(text)
    if function and rest.rpartition("/")[2] not in {"", ".", ".."}:
        return Reference(text=text, folder=rest, function=function)
    return Reference(text=text, folder=text)


def _split_selector(text: str) -> tuple[str, tuple[str, str]]:
    """Return ``text`` without its ``:Layer`` or ``.function``, and these two."""
    match = _SELECTOR.fullmatch(text)
    if match is None:
        return text, ("", "")
    name = match["name"]
    return match["rest"], (name, "") if match["kind"] == ":" else ("", name)


def _compare(version: int, sign: str, number: int) -> bool:
    holds = {
        ">=": version >= number,
        "<=": version <= number,
        "==": version == number,
        "!=": version != number,
        ">": version > number,
        "<": version < number,
    }
    return holds[sign]


def _mistake(text: object, what: str, remedy: str = "") -> KbtError:
    return KbtError(f"get_kernel({text!r})", what, FORMS, remedy)
