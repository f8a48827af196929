"""Write the JSON Schemas of the published formats: ``python -m kernels_bench_tools.records.json_schema docs``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from kernels_bench_tools.records.record import Record
from kernels_bench_tools.records.selfcheck import SelfCheck
from kernels_bench_tools.records.summary import Report, Summary

PUBLISHED: dict[str, type[msgspec.Struct]] = {
    "record": Record,
    "report": Report,
    "selfcheck": SelfCheck,
    "summary": Summary,
}
"""File stem to the struct whose schema it holds."""


def schema_text(kind: type[msgspec.Struct]) -> str:
    return json.dumps(msgspec.json.schema(kind), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    for stem, kind in PUBLISHED.items():
        Path(sys.argv[1], f"{stem}.schema.json").write_text(schema_text(kind), encoding="utf-8")
