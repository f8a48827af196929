"""Logs that are too long to keep: their beginning and their end are kept, with a line that says so."""

from __future__ import annotations

from pathlib import Path

HEAD_BYTES = 16 * 1024
"""Short, so that a page, which shows the first 20,000 bytes of a long log, shows the line as well."""
TAIL_BYTES = 2**20


def cut_log(log: Path) -> None:
    """Replace the middle of a long log by a line; whole lines are kept where lines are short."""
    size = log.stat().st_size
    if size <= HEAD_BYTES + TAIL_BYTES:
        return
    with log.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(size - TAIL_BYTES)
        tail = file.read()
    head = head[: head.rfind(b"\n") + 1] or head
    tail = tail[tail.find(b"\n", 0, TAIL_BYTES // 2) + 1 :]
    missing = size - len(head) - len(tail)
    line = f"--- {missing:,} bytes are missing here: the log was too long ---\n".encode()
    log.write_bytes(head + (b"" if head.endswith(b"\n") else b"\n") + line + tail)
