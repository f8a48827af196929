"""The script of the pages is the one that its sources make."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TEMPLATES = Path(__file__).parent.parent.parent / "templates"


def test_the_committed_script_was_made_from_the_committed_sources():
    spec = importlib.util.spec_from_file_location("build_scripts", TEMPLATES / "scripts" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)

    first = build.BUILT.read_text(encoding="utf-8").splitlines()[0]

    assert first == f"/* Made from templates/scripts {build.digest()} */"
