"""The pages and files of the site that no notebook stands for, by their site paths."""

from __future__ import annotations

import posixpath

DEVICES = "devices/index.html"
FEED = "feed.xml"
FRONT = "index.html"
HIGHLIGHTING = "static/highlight.css"
METHOD = "method.html"
NOT_FOUND = "404.html"
REPORT = "report.json"
SELFCHECK = "selfcheck.html"
STATUS = "status.html"


def device_page(slug: str) -> str:
    """Return the page of a device, by its slug."""
    # A device called "index" would take the place of the list of devices.
    return f"devices/{slug if slug != 'index' else 'index-device'}.html"


def backward_page(folder: str) -> str:
    """Return the page of an operator's backward passes, by the operator's folder."""
    return posixpath.join(folder, "backward.html")


def matrix_page(folder: str) -> str:
    """Return the page of an operator's matrix, by the operator's folder."""
    return posixpath.join(folder, "matrix.html")


def operator_feed(folder: str) -> str:
    """Return an operator's feed."""
    return posixpath.join(folder, FEED)


def operator_badge(folder: str) -> str:
    """Return an operator's badge."""
    return posixpath.join(folder, "badge.svg")


def operator_records(folder: str) -> str:
    """Return the file of all records behind an operator's summary."""
    return posixpath.join(folder, "results", "records.jsonl")
