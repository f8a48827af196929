"""How the records of several processes become one: each field declares it where it is defined.

``compile_ms: Median[Milliseconds | None]`` is the median of those that are known. A field without a declaration is an
error, where it would otherwise be lost without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter, itemgetter
from statistics import median
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import msgspec

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class Merge(NamedTuple):
    of: Callable[[Sequence[Any]], Any] | None
    """Returns the value for those of all processes; None if it follows from several fields."""


def median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def commonest(values: Iterable[Any]) -> Any:
    """Return the most frequent value, the first of several; None for none."""
    known = [value for value in values if value is not None]
    return Counter(known).most_common(1)[0][0] if known else None


def _largest(values: Iterable[Any], key: Callable[[Any], Any] | None = None) -> Any:
    return max((value for value in values if value is not None), key=key, default=None)


First = Annotated[T, Merge(itemgetter(0))]
"""Of the first process that ran, or of the first if none did."""
FirstKnown = Annotated[T, Merge(lambda values: next(filter(None, values), values[0]))]
"""Of the first process that has it."""
Median = Annotated[T, Merge(median_of_known)]
Largest = Annotated[T, Merge(_largest)]
Farthest = Annotated[T, Merge(lambda values: _largest(values, abs))]
"""The one farthest from 0."""
Sum = Annotated[T, Merge(sum)]
AnyOf = Annotated[T, Merge(any)]
Joined = Annotated[T, Merge(lambda values: [*chain.from_iterable(values)])]
"""The lists of all processes, one after the other."""
Union = Annotated[T, Merge(lambda values: sorted({*chain.from_iterable(values)}, key=attrgetter("place")))]
"""Each value that some process has, in the order of their enumeration."""
Commonest = Annotated[T, Merge(commonest)]
LastListed = Annotated[T, Merge(lambda values: max(values, key=attrgetter("place")))]
"""The one that its enumeration lists last."""
Computed = Annotated[T, Merge(None)]
"""From several fields, see ``results/processes.py``."""


@cache
def declared_merges(kind: type[msgspec.Struct]) -> Mapping[str, Merge]:
    """Return how each field of a type merges; ``TypeError`` if one does not say."""
    merges = {}
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        declared = [it for it in getattr(hints[name], "__metadata__", ()) if isinstance(it, Merge)]
        if not declared:
            raise TypeError(f"{kind.__name__}.{name} does not declare how it merges over processes")
        merges[name] = declared[0]
    return merges


def merge_fields(values: Sequence[S], **computed: Any) -> S:
    """Return one struct for those of all processes; ``computed`` has the fields that declare to be."""
    kind = type(values[0])
    merged = {
        name: merge.of([getattr(value, name) for value in values])
        for name, merge in declared_merges(kind).items()
        if merge.of
    }
    assert computed.keys() == {*kind.__struct_fields__} - merged.keys()
    return kind(**merged, **computed)
