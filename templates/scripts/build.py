"""Put the scripts of the pages into one small file: ``uv run --with tdewolff-minify==2.24.12 templates/scripts/build.py``.

The result is committed, so that only who changes a script needs the minifier. Its first line names the digest of what
it was made from; a test compares.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

SOURCES = ("state.js", "charts.js", "tables.js", "start.js")
FOLDER = Path(__file__).parent
BUILT = FOLDER.parent / "static" / "report.js"


def source() -> str:
    """Return the scripts as one, each after those that it uses."""
    scripts = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SOURCES)
    return f'(() => {{\n"use strict";\n{scripts}}})();\n'


def digest() -> str:
    """Return what the first line of the built script says."""
    return hashlib.sha256(source().encode()).hexdigest()[:16]


def main() -> None:
    """Write the built script."""
    import minify

    text = minify.string("application/javascript", source())
    BUILT.write_text(f"/* Made from templates/scripts {digest()} */\n{text}\n", encoding="utf-8")
    print(f"{BUILT}: {BUILT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
