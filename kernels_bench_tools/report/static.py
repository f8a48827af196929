"""What the package brings along for pages: templates, style sheets and the script."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def template_folder() -> Path:
    """Return the folder of the templates: inside an installed package, beside it in a checkout."""
    installed = _PACKAGE / "templates"
    return installed if installed.is_dir() else _PACKAGE.parent / "templates"


def static_files() -> dict[str, bytes]:
    """Return the style sheet and the script that every page loads, by their site paths."""
    folder = template_folder() / "static"
    return {f"static/{path.name}": path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
