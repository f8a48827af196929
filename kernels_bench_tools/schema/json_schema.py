"""Write the JSON Schemas of the published formats: ``python -m kernels_bench_tools.schema.json_schema docs``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.schema.record import Record
from kernels_bench_tools.schema.selfcheck import SelfCheck
from kernels_bench_tools.schema.summary import Report, Summary

PUBLISHED: dict[str, type[msgspec.Struct]] = {
    "record": Record,
    "report": Report,
    "selfcheck": SelfCheck,
    "summary": Summary,
}
"""File stem to the struct whose schema it holds."""


def schema_text(kind: type[msgspec.Struct]) -> str:
    """Return the JSON Schema of ``kind``, as its file holds it."""
    schema: dict[str, Any] = msgspec.json.schema(kind)
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def write_schemas(folder: Path) -> None:
    """Write ``<stem>.schema.json`` for every published format into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, kind in PUBLISHED.items():
        (folder / f"{stem}.schema.json").write_text(schema_text(kind), encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
