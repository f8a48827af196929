"""Names in files, ids and URLs: one slugify for all of them."""

from __future__ import annotations

import re

_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")


def slugify(text: str) -> str:
    """Return ``text`` in kebab-case for ids and URLs; ``"unnamed"`` if nothing is left.

    >>> slugify("NVIDIA H200")
    'nvidia-h200'
    """
    return _NOT_ALPHANUMERIC.sub("-", text.lower()).strip("-") or "unnamed"


def series_slug(implementation: str, device: str) -> str:
    """Return the slug of one line in a chart: an implementation on a device.

    >>> series_slug("torch_layer_norm", "nvidia-h200")
    'torch-layer-norm--nvidia-h200'
    """
    return f"{slugify(implementation)}--{slugify(device)}"


def environment_key(name: str) -> str:
    """Return ``name`` as uvnote spells it in a variable: letters and digits upper-cased, else ``_``.

    >>> environment_key("torch-layer.norm")
    'TORCH_LAYER_NORM'
    """
    return "".join(char.upper() if char.isalnum() else "_" for char in name)


def title_from_name(name: str) -> str:
    """Return a readable title for a file stem or id that has none of its own.

    >>> title_from_name("torch_layer_norm")
    'Torch Layer Norm'
    """
    return " ".join(word.capitalize() for word in re.split(r"[_\-]+", name) if word) or name
