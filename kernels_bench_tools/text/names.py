"""Names in files, ids, URLs and variables: one way to make each."""

from __future__ import annotations

import re
from collections.abc import Collection

_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")


def slugify(text: str) -> str:
    """Return ``text`` in kebab-case for ids and URLs; ``"unnamed"`` if nothing is left.

    >>> slugify("NVIDIA H200")
    'nvidia-h200'
    """
    return _NOT_ALPHANUMERIC.sub("-", text.lower()).strip("-") or "unnamed"


def make_unique(name: str, taken: Collection[str], number: int = 2) -> str:
    """Return ``name``, or if it is taken the first of ``name-2``, ``name-3`` and so on that is not."""
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique


def is_file_name(text: str) -> bool:
    """Return whether ``text`` can be the name of a file: printable, not hidden, without separators, not too long.

    >>> is_file_name("LN_B16_S2048"), is_file_name("../x"), is_file_name(".."), is_file_name("")
    (True, False, False, False)
    """
    return text.isprintable() and 0 < len(text.encode()) <= 200 and text[0] != "." and not {*"/\\"} & {*text}


def is_unicode(name: str) -> bool:
    r"""Return whether a name from a file system is text: other bytes become surrogates, which no page or key can have.

    >>> is_unicode("é.jsonl"), is_unicode("\udcff.jsonl")
    (True, False)
    """
    return name.encode(errors="ignore").decode() == name


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
