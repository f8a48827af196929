"""What no terminal or page shows: credentials in URLs, home folders, control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import AnyStr
from urllib.parse import quote, unquote

_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# In JSON, what begins a line follows an escaped line feed.
_HOME_FOLDER = re.compile(
    r"""/(?:(?<![\w.~-]/)|(?<=\\[nrt]/))(?:(?:home|Users)/[^/\0- \s"'<>&:;,()\\]+|root)(?=[/\0- \s"'<>&:;,()\\]|$)"""
)
# What is replaced in a URL has no character that means something in a format of files: no white space, quote, backslash
# or angle bracket, also as an entity. An escape such as \u00e9 is a character, and a second "://" begins the next URL.
_ANY = r"""(?: [^\s"'`<>\\&:\x00-\x1f\x7f-\x9f] | :(?!//) | \\u(?!00[0-7])[\da-f]{4}
    | &(?! (?:amp;)* (?:quot|apos|lt|gt|\#(?:9|10|13|32|34|39|60|62|x2[27]|x3[ce])) ; ) )"""
_SECRET = rf"(?: {_ANY} | ' | &(?:apos|\#39|\#x27); )"  # passwords may have quotes, which stay
_URL = re.compile(
    rf"""://(
    # Up to the last "@" if a name and a colon are before it, and no port. Else what is before the host; in URLs of SSH it is
    # no secret, since the key is elsewhere.
    (?!\[) (?: (?:(?<!ssh://) | (?=[^:@]*:)) (?:(?![/?\#:]){_SECRET})*
        :(?! // | \d{{1,5}} (?:[/?\#'),;&] | (?!{_SECRET})) ) {_SECRET}*
        | (?<!ssh://)(?:(?![/?\#]){_ANY})* ) (?=@) )?
    ({_ANY}*+)""",
    re.VERBOSE | re.IGNORECASE,
)
_PASSWORD = re.compile(r"(?<![^&';])(?!(?<=&)(?:amp|apos|#39|#x27);)[^&';]+", re.IGNORECASE)
_IN_PATH = re.compile(
    r"""^([^/?&;#]+/)(?!/|pypi/simple)[^?&;#]+(?=/simple(?:[/?&;#]|\W*$)) | (?<=/basic/)[^/?&;#]+  # of a package index
    # Known beginnings, or letters of both cases with digits, which is neither a name nor a digest.
    | (?<=/)(?:gh[opsu]_|github_pat_(?:[A-Za-z0-9]+_)?|glpat-|hf_|pypi-)[A-Za-z0-9-]{16,}(?![\w.])
    | (?<=/)(?=(?:[A-Za-z]*\d){3})(?=\w*[a-z])(?=\w*[A-Z])[A-Za-z0-9]{16,}(?=[/?&;#]|\W*$)""",
    re.VERBOSE,
)
_PARAMETER = re.compile(
    r"(?i)([?&;#][^=&;#]*?(?:(token|key|secret|pass|pwd|sig|auth|cred|jwt)[^=&;#]*)?(?:=|(?![^&;#])))([^&;#]*)"
)

_ADDRESS = re.compile(
    r"(?:(?:\w+:)?//|^(?=\S+@))(?:(?P<user>[^\s,]*)@)?(?P<host>[^/?#\s,@]+)(?P<rest>[^\s,]*)"
)
_SEPARATOR = re.compile(r"[/?&;#=]+")
_PLAIN = {"", "simple", "pypi", "whl"}
_KEPT = rf"(?:{_SEPARATOR.pattern}(?:simple|pypi|whl)(?![^\W_]))*"
_SHORTEST, _COMMON = 6, 16
"""A part of an address is hidden elsewhere from the first length on; one of letters, such as `packages`, from the second."""
_known: dict[re.Pattern[str], str] = {}
"""What is hidden because a variable has it."""


def visible(text: str) -> str:
    r"""Return a text for a terminal or a page: without credentials in URLs, with control characters as escapes.

    With them, and those that change the writing direction, it would show something else than what the text contains.

    >>> print(visible("a\x1b[2Kb"))
    a\x1b[2Kb
    """
    # In JSON, where characters below 0x20 are escaped already, only the second form is valid.
    return _UNSEEN.sub(
        lambda unseen: (r"\x%02x" if unseen[0] < " " else r"\u%04x") % ord(unseen[0]),
        without_credentials(text),
    )


def without_styles(text: str) -> str:
    r"""Return a text without the escape sequences by which terminals show colours and move the cursor.

    >>> without_styles("\x1b[91merror\x1b[0m")
    'error'
    """
    return _ESCAPE_SEQUENCE.sub("", text)


def without_private(data: AnyStr) -> AnyStr:
    """Return a text, or what encodes it, with ``~`` for the home folders of users, and without credentials in URLs.

    >>> without_private(b"/home/me/x.py and file:///Users/me/y from https://me:a@index/b/simple?token=c")
    b'~/x.py and file://~/y from https://***@index/***/simple?token=***'
    """
    if isinstance(data, bytes):
        return without_private(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return without_credentials(_HOME_FOLDER.sub("~", data))


def without_credentials(text: str) -> str:
    for secret, replacement in _known.items():
        text = secret.sub(replacement, text)
    return _URL.sub(_without_secrets, text)


def hide_values(values: Iterable[str]) -> None:
    """Hide these passwords, and all but the host of these addresses, from now on, whatever they look like."""
    for value in values:
        urls = list(_ADDRESS.finditer(value))
        for url in urls:
            host = (
                re.escape(re.sub(r":\d+$", "", url["host"])) + r"(?::\d+)?"
            )  # programs leave out a usual port
            user = (url["user"] or "").split(":")
            _hide({*_SEPARATOR.split(url["rest"])} - _PLAIN, f"{host}{_KEPT}{_SEPARATOR.pattern}")
            parts = {user[0], url["rest"].strip("/"), *_SEPARATOR.split(url["rest"])}
            parts = {part for part in parts if len(part) >= _SHORTEST}
            _hide({part for part in parts if len(part) >= _COMMON or not part.isalpha()} | {*user[1:]})
        if not urls:
            _hide({value})


def _hide(texts: set[str], start: str = "") -> None:
    """Hide texts as they are written and as a program writes them that has read them, where they follow ``start``."""
    forms = {form for it in texts for form in (it, unquote(it), quote(unquote(it)), quote(it, safe=""))}
    if hidden := [re.escape(form) for form in sorted(forms, key=len, reverse=True) if start or len(form) > 3]:
        one = rf"(?:{'|'.join(hidden)})(?![^\W_])"
        more = rf"(?:{_KEPT}{_SEPARATOR.pattern}{one})*" if start else ""
        _known[re.compile(rf"(?<![^\W_])({start}){one}{more}", re.IGNORECASE)] = r"\1***"


def _without_secrets(url: re.Match[str]) -> str:
    user, rest = _PASSWORD.sub("***", url[1] or ""), _IN_PATH.sub(r"\1***", url[2])
    return f"://{user}" + _PARAMETER.sub(lambda it: it[1] + ("***" if it[2] and it[3] else it[3]), rest)


def has_credentials(text: str) -> bool:
    """Return whether an address in the text has credentials, wherever they may stand in it."""
    return _URL.sub(_without_secrets, text) != text
