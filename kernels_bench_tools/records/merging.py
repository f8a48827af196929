"""How the records of several processes become one: each field declares it where it is defined.

``compile_ms: Median[Milliseconds | None]`` is the median of those that are known. A field without a declaration is an
error, where it would otherwise be lost without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from itertools import chain
from statistics import median
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class Merge(Enum):
    FIRST = auto()
    FIRST_KNOWN = auto()
    MEDIAN = auto()
    LARGEST = auto()
    FARTHEST = auto()
    SUM = auto()
    ANY = auto()
    JOINED = auto()
    UNION = auto()
    COMMONEST = auto()
    LAST_LISTED = auto()
    COMPUTED = auto()


First = Annotated[T, Merge.FIRST]
"""Of the first process that ran, or of the first if none did."""
FirstKnown = Annotated[T, Merge.FIRST_KNOWN]
"""Of the first process that has it."""
Median = Annotated[T, Merge.MEDIAN]
Largest = Annotated[T, Merge.LARGEST]
Farthest = Annotated[T, Merge.FARTHEST]
"""The one farthest from 0."""
Sum = Annotated[T, Merge.SUM]
AnyOf = Annotated[T, Merge.ANY]
Joined = Annotated[T, Merge.JOINED]
"""The lists of all processes, one after the other."""
Union = Annotated[T, Merge.UNION]
"""Each value that some process has, in the order of their enumeration."""
Commonest = Annotated[T, Merge.COMMONEST]
LastListed = Annotated[T, Merge.LAST_LISTED]
"""The one that its enumeration lists last."""
Computed = Annotated[T, Merge.COMPUTED]
"""From several fields, see ``results/processes.py``."""


def median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def _largest(values: Iterable[Any], key: Callable[[Any], Any] = lambda value: value) -> Any:
    return max((value for value in values if value is not None), key=key, default=None)


def commonest(values: Iterable[Any]) -> Any:
    """Return the most frequent value, the first of several; None for none."""
    known = [value for value in values if value is not None]
    return Counter(known).most_common(1)[0][0] if known else None


def _place(value: Enum) -> int:
    return list(type(value)).index(value)


_MERGED: Mapping[Merge, Callable[[Sequence[Any]], Any]] = {
    Merge.FIRST: lambda values: values[0],
    Merge.FIRST_KNOWN: lambda values: next(filter(None, values), values[0]),
    Merge.MEDIAN: median_of_known,
    Merge.LARGEST: _largest,
    Merge.FARTHEST: lambda values: _largest(values, abs),
    Merge.SUM: sum,
    Merge.ANY: any,
    Merge.JOINED: lambda values: [*chain.from_iterable(values)],
    Merge.UNION: lambda values: sorted({*chain.from_iterable(values)}, key=_place),
    Merge.COMMONEST: commonest,
    Merge.LAST_LISTED: lambda values: max(values, key=_place),
}


@cache
def declared_merges(kind: type[msgspec.Struct]) -> Mapping[str, Merge]:
    """Return how each field of a type merges; ``TypeError`` if one does not say."""
    found = {}
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        said = [one for one in getattr(hints[name], "__metadata__", ()) if isinstance(one, Merge)]
        if not said:
            raise TypeError(f"{kind.__name__}.{name} does not declare how it merges over processes")
        found[name] = said[0]
    return found


def merge_fields(values: Sequence[S], **computed: Any) -> S:
    """Return one struct for those of all processes; ``computed`` has the fields that declare to be."""
    kind = type(values[0])
    merges = declared_merges(kind)
    assert computed.keys() == {name for name, how in merges.items() if how is Merge.COMPUTED}
    others = {
        name: _MERGED[how]([getattr(value, name) for value in values])
        for name, how in merges.items()
        if how is not Merge.COMPUTED
    }
    return kind(**others, **computed)
