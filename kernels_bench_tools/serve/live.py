"""What pages that are open in a browser are told, and how they come to listen."""

from __future__ import annotations

import re
import secrets
import threading
from html import escape
from pathlib import Path

import msgspec

EVENTS = "/.kbt/events"
SCRIPT = "/.kbt/live.js"
"""Addresses that no site has: its files are never in hidden folders."""
SCRIPT_FILE = Path(__file__).with_name("live.js")

_POLICY = re.compile(
    rb"""(<meta\s+http-equiv=(["'])Content-Security-Policy\2\s+content=(["']))(?P<policy>.*?)(\3)""",
    re.IGNORECASE,
)
_END_OF_HEAD = re.compile(rb"</head\s*>", re.IGNORECASE)


class News(msgspec.Struct, frozen=True):
    """What an open page needs to know."""

    version: str
    """Of the report; a page that was made for another one is old."""
    error: str = ""
    """Why the report could not be brought up to date."""
    busy: str = ""
    """What is being done about the last edit."""


class Live:
    """The latest news, and those who wait for them; safe to share between threads."""

    def __init__(self) -> None:
        # A server that was started again must not take an old page for a current one.
        self._server = secrets.token_hex(4)
        self._report = 0
        self._number = 0
        self._changed = threading.Condition()
        self._news = News(self.version)
        self.closed = False

    @property
    def version(self) -> str:
        """The version of the report that is being served."""
        return f"{self._server}-{self._report}"

    def tell(self, *, error: str = "", busy: str = "", new_report: bool = False) -> None:
        """Let every open page know; with ``new_report`` they load themselves again."""
        with self._changed:
            self._report += new_report
            news = News(self.version, error, busy)
            if news != self._news:
                self._news = news
                self._number += 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let everyone who waits go."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> tuple[int, News]:
        """Return the news and their number, as soon as it is another one than ``seen``, or after a while."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._number != seen, seconds)
            return self._number, self._news


def enliven(page: bytes, version: str) -> bytes:
    """Return a page that listens; its policy lets it do so.

    Args:
        page: HTML.
        version: The version of the report, as known before the page was read.
    """
    page = _POLICY.sub(lambda match: match[1] + _listening(match["policy"]) + match[5], page, count=1)
    tag = f'<script src="{SCRIPT}" data-version="{escape(version)}" defer></script>'.encode()
    head = _END_OF_HEAD.search(page)
    return page[: head.start()] + tag + page[head.start() :] if head else page + tag


def _listening(policy: bytes) -> bytes:
    """Return a content security policy that allows the server's own script and events."""
    directives: dict[bytes, list[bytes]] = {}
    for directive in policy.split(b";"):
        words = directive.split()
        if words:
            directives[words[0].lower()] = words[1:]
    for name in (b"script-src", b"connect-src"):
        sources = directives.get(name, directives.get(b"default-src", []))
        directives[name] = [b"'self'", *(one for one in sources if one not in {b"'none'", b"'self'"})]
    return b"; ".join(b" ".join([name, *sources]) for name, sources in directives.items())


def placeholder(title: str, text: str) -> bytes:
    """Return a page that stands where the report has none (yet)."""
    style = "font: 1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="dark light"><link rel="icon" href="data:,">'
        f'<title>{escape(title)}</title></head><body style="{style}">'
        f"<h1>{escape(title)}</h1><p>{escape(text)}</p></body></html>"
    ).encode()
