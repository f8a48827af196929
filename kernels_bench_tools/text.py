"""Names in files, ids and URLs, numbers in tables, charts and pages, and groups of rows there: one way to make each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from math import floor, log10
from typing import AnyStr, TypeVar

from kernels_bench_tools.estimate import Estimate

MISSING = "–"
_LAST_COLUMN = 22
"""Characters that a table leaves to its last column, if it is longer."""
K = TypeVar("K")
V = TypeVar("V")
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")

_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# In JSON, what begins a line follows an escaped line feed.
_HOME_FOLDER = re.compile(
    r"""/(?:(?<![\w.~-]/)|(?<=\\[nrt]/))(?:(?:home|Users)/[^/\0- \s"'<>&:;,()\\]+|root)(?=[/\0- \s"'<>&:;,()\\]|$)"""
)
# What is replaced in a URL has no character that means something in a format of files: no white space, quote, backslash
# or angle bracket, also as an entity. An escape such as \u00e9 is a character, and a second "://" begins the next URL.
_ANY = r"""(?: [^\s"'`<>\\&:\x00-\x1f\x7f-\x9f] | :(?!//) | \\u(?!00[0-7])[\da-f]{4}
    | &(?! (?:amp;)* (?:quot|apos|lt|gt|\#(?:9|10|13|32|34|39|60|62|x2[27]|x3[ce])) ; ) )"""
_SECRET = rf"(?: {_ANY} | ' | &(?:apos|\#39|\#x27); )"  # passwords may have quotes, which stay
_URL = re.compile(
    rf"""://(
    # Up to the last "@" if a name and a colon are before it, and no port. Else what is before the host; in URLs of SSH it is
    # no secret, since the key is elsewhere.
    (?!\[) (?: (?:(?<!ssh://) | (?=[^:@]*:)) (?:(?![/?\#:]){_SECRET})*
        :(?! // | \d{{1,5}} (?:[/?\#'),;&] | (?!{_SECRET})) ) {_SECRET}*
        | (?<!ssh://)(?:(?![/?\#]){_ANY})* ) (?=@) )?
    ({_ANY}*+)""",
    re.VERBOSE | re.IGNORECASE,
)
_PASSWORD = re.compile(r"(?<![^&';])(?!(?<=&)(?:amp|apos|#39|#x27);)[^&';]+", re.IGNORECASE)
_IN_PATH = re.compile(
    r"""^([^/?&;#]+/)(?!/|pypi/simple)[^?&;#]+(?=/simple(?:[/?&;#]|\W*$)) | (?<=/basic/)[^/?&;#]+  # of a package index
    # Known beginnings, or letters of both cases with digits, which is neither a name nor a digest.
    | (?<=/)(?:gh[opsu]_|github_pat_(?:[A-Za-z0-9]+_)?|glpat-|hf_|pypi-)[A-Za-z0-9-]{16,}(?![\w.])
    | (?<=/)(?=(?:[A-Za-z]*\d){3})(?=\w*[a-z])(?=\w*[A-Z])[A-Za-z0-9]{16,}(?=[/?&;#]|\W*$)""",
    re.VERBOSE,
)
_PARAMETER = re.compile(
    r"(?i)([?&;#][^=&;#]*?(?:(token|key|secret|pass|pwd|sig|auth|cred|jwt)[^=&;#]*)?(?:=|(?![^&;#])))([^&;#]*)"
)


def visible(text: str) -> str:
    r"""Return a text for a terminal or a page: without credentials in URLs, with control characters as escapes.

    With them, and those that change the writing direction, it would show something else than what the text contains.

    >>> print(visible("a\x1b[2Kb"))
    a\x1b[2Kb
    """
    # In JSON, where characters below 0x20 are escaped already, only the second form is valid.
    return _UNSEEN.sub(
        lambda found: (r"\x%02x" if found[0] < " " else r"\u%04x") % ord(found[0]), without_credentials(text)
    )


def without_styles(text: str) -> str:
    r"""Return a text without the escape sequences by which terminals show colours and move the cursor.

    >>> without_styles("\x1b[91merror\x1b[0m")
    'error'
    """
    return _ESCAPE_SEQUENCE.sub("", text)


def without_private(data: AnyStr) -> AnyStr:
    """Return a text, or what encodes it, with ``~`` for the home folders of users, and without credentials in URLs.

    >>> without_private(b"/home/me/x.py and file:///Users/me/y from https://me:a@index/b/simple?token=c")
    b'~/x.py and file://~/y from https://***@index/***/simple?token=***'
    """
    if isinstance(data, bytes):
        return without_private(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return without_credentials(_HOME_FOLDER.sub("~", data))


def without_credentials(text: str) -> str:
    return _URL.sub(_without_secrets, text)


def _without_secrets(url: re.Match[str]) -> str:
    user, rest = _PASSWORD.sub("***", url[1] or ""), _IN_PATH.sub(r"\1***", url[2])
    return f"://{user}" + _PARAMETER.sub(lambda it: it[1] + ("***" if it[2] and it[3] else it[3]), rest)


def has_credentials(text: str) -> bool:
    """Return whether an address in the text has credentials, wherever they may stand in it."""
    return without_credentials(text) != text


def slugify(text: str) -> str:
    """Return ``text`` in kebab-case for ids and URLs; ``"unnamed"`` if nothing is left.

    >>> slugify("NVIDIA H200")
    'nvidia-h200'
    """
    return _NOT_ALPHANUMERIC.sub("-", text.lower()).strip("-") or "unnamed"


def unlike(name: str, taken: Collection[str], number: int = 2) -> str:
    """Return ``name``, or if it is taken the first of ``name-2``, ``name-3`` and so on that is not."""
    found = name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found


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


def plural(count: int, word: str, ending: str = "s") -> str:
    """Return a count with its noun.

    >>> plural(2, "process", "es")
    '2 processes'
    """
    return f"{count} {word}{'' if count == 1 else ending}"


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are.

    >>> few("abcde")
    'a, b, c and 2 more'
    """
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order.

    >>> grouped((len(word), word) for word in ("norm", "mask", "rotary"))
    {4: ['norm', 'mask'], 6: ['rotary']}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most ``width`` characters, 0 for one line, with its indentation.

    It is broken at spaces, in a longer word after ``/``, and in a longer part of it after ``_``. Nothing is cut elsewhere.

    >>> wrapped("  error: in kernels_bench_tools/hub", 16)
    ['  error: in', '  kernels_bench_', '  tools/hub']
    """
    if len(text) <= width or not width:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    lines = [indent]
    for word in text.split():
        for space, part in zip_longest([" "], _parts(word, width - len(indent), "/_"), fillvalue=""):
            if lines[-1] == indent:
                lines[-1] += part
            elif len(lines[-1] + space + part) <= width:
                lines[-1] += space + part
            else:
                lines.append(indent + part)
    return lines


def _parts(word: str, width: int, marks: str) -> list[str]:
    """Return a word, or if it is too long its parts, which end with the first of these marks, and so on."""
    if len(word) <= width or not marks:
        return [word]
    pieces = re.findall(f"[^{marks[0]}]*{marks[0]}+|[^{marks[0]}]+", word)
    return [part for piece in pieces for part in _parts(piece, width, marks[1:])]


def table(
    rows: Iterable[Sequence[str]],
    right: Collection[int] = (),
    width: int = 0,
    whole: Collection[int] = (),
    optional: Sequence[int] = (),
) -> str:
    r"""Return rows, of which the first has the titles, as a text of columns; control characters become escapes.

    Columns whose numbers are in ``right`` are aligned to the right. A cell may have several lines. If the table is wider
    than ``width`` characters, ``optional`` columns are left out, one by one, and then the others become narrower, the
    widest one first, as far as their texts can be wrapped; words are broken only if that is not enough. Columns in
    ``whole`` are not wrapped. Optional columns without any value are always left out.

    >>> rows = [["implementation", "ms", "verdict"], ["norm/torch_norm", "1.25", "not measured separately"]]
    >>> print(table(rows, right={1}, width=33))
    implementation     ms  verdict
    norm/torch_norm  1.25  not
                           measured
                           separately
    """
    cells = [[visible(text).split("\n") for text in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    longest = [max(len(line) for lines in column for line in lines) for column in columns]
    kept = [
        at
        for at, column in enumerate(columns)
        if at not in optional or {*map("".join, column[1:])} - {"", MISSING}
    ]
    for at in optional:
        # The last column, with reasons, is wrapped before others are left out.
        needed = sum(longest[one] + 2 for one in kept[:-1]) + min(longest[kept[-1]], _LAST_COLUMN)
        if at in kept and needed > width > 0:
            kept.remove(at)
    columns, sizes = [columns[at] for at in kept], [longest[at] for at in kept]
    right, whole = ({kept.index(at) for at in kept if at in chosen} for chosen in (right, whole))
    for marks in ("", "/", "/_"):
        least = [
            sizes[at]
            if at in {*right, *whole}
            else max(_least_width(line, marks) for lines in column for line in lines)
            for at, column in enumerate(columns)
        ]
        while sum(sizes) + 2 * len(sizes) - 2 > width > 0:
            at = max(range(len(sizes)), key=lambda at: sizes[at] * (sizes[at] > least[at]))
            if sizes[at] <= least[at]:
                break
            sizes[at] -= 1
    made = []
    for row in zip(*columns, strict=True):
        folded = [
            [part for line in lines for part in wrapped(line, size)]
            for lines, size in zip(row, sizes, strict=True)
        ]
        for texts in zip_longest(*folded, fillvalue=""):
            sized = enumerate(zip(texts, sizes, strict=True))
            line = "  ".join(
                text.rjust(size) if at in right else text.ljust(size) for at, (text, size) in sized
            )
            made.append(line.rstrip())
    return "\n".join(made)


def _least_width(line: str, marks: str) -> int:
    """Return the longest of the parts in which a line can be broken at spaces and marks, with the indentation."""
    parts = [part for word in line.split() for part in _parts(word, 1, marks)]
    return len(line) - len(line.lstrip()) + max(map(len, parts), default=0)


def decimals(value: float, significant: int = 4) -> int:
    """Return how many decimals show ``value`` with this many significant digits."""
    return 0 if value == 0 else max(0, significant - 1 - floor(log10(abs(value))))


def milliseconds(value: float | None) -> str:
    """Return a time with four significant digits, without its unit.

    >>> milliseconds(0.0109123), milliseconds(12.3456), milliseconds(None)
    ('0.01091', '12.35', '–')
    """
    return MISSING if value is None else f"{value:,.{decimals(value)}f}"


def two_digits(value: float) -> str:
    """Return a number with two significant digits.

    >>> two_digits(0.10642), two_digits(12.3)
    ('0.11', '12')
    """
    return f"{value:,.{decimals(value, 2)}f}"


def interval(estimate: Estimate | None) -> str:
    """Return the interval of a median with as many decimals as the median; empty if there is none.

    >>> interval(Estimate(0.12345, 0.12, 0.13))
    '[0.1200, 0.1300]'
    """
    if estimate is None or not estimate.known:
        return ""
    places = decimals(estimate.value)
    return f"[{estimate.low:,.{places}f}, {estimate.high:,.{places}f}]"


def times(value: float | None) -> str:
    """Return a speed-up.

    >>> times(1.2549), times(12.34), times(0.0412), times(None)
    ('1.25×', '12.3×', '0.041×', '–')
    """
    if value is None:
        return MISSING
    return f"{value:,.{1 if value >= 10 else max(2, decimals(value, 2))}f}×"


def times_interval(estimate: Estimate | None) -> str:
    """Return the interval of a speed-up; empty if there is none, as of exactly 1.

    >>> times_interval(Estimate(1.25, 1.2449, 1.2611)), times_interval(Estimate(0.0727, 0.07261, 0.07284))
    ('[1.245, 1.261]', '[0.0726, 0.0728]')
    >>> times_interval(Estimate(1.5, 0.4571, 124.32)), times_interval(Estimate(1.0, 1.0, 1.0))
    ('[0.457, 124]', '')
    """
    if estimate is None or not estimate.known or estimate.low == estimate.high:
        return ""
    low, high = estimate.low, estimate.high
    if high > 2 * low:
        return f"[{low:,.{decimals(low, 3)}f}, {high:,.{decimals(high, 3)}f}]"
    places = max(3 if low < 10 else 2, decimals(low, 3))
    return f"[{low:,.{places}f}, {high:,.{places}f}]"


def times_with_interval(estimate: Estimate | None) -> str:
    """Return a speed-up with its interval, if there is one.

    >>> times_with_interval(Estimate(1.521, 1.5031, 1.5411)), times_with_interval(Estimate.of(2.0, None, None))
    ('1.52× [1.503, 1.541]', '2.00×')
    """
    return f"{times(estimate and estimate.value)} {times_interval(estimate)}".rstrip()


def percent(value: float | None) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.9234), percent(0.0042), percent(None)
    ('92 %', '0.42 %', '–')
    """
    if value is None:
        return MISSING
    return f"{100 * value:.0f} %" if abs(value) >= 0.1 else f"{100 * value:.2g} %"


def deviation(value: float | None) -> str:
    """Return a relative difference with its sign.

    >>> deviation(0.0034), deviation(-0.0002)
    ('+0.34 %', '-0.02 %')
    """
    return MISSING if value is None else f"{100 * value:+.2f} %"


def quantity(value: float | None) -> str:
    """Return a number with three significant digits, or more where it is large.

    >>> quantity(3124.7), quantity(0.015625), quantity(0.0)
    ('3,125', '0.0156', '0')
    """
    if value is None:
        return MISSING
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{decimals(value, 3)}f}"


def tick(value: float) -> str:
    """Return a number as an axis shows it, with up to six significant digits.

    >>> tick(0.05), tick(2500.0)
    ('0.05', '2,500')
    """
    return f"{value:,g}" if value < 1e6 else f"{value:g}"


def sortable(value: float | None) -> str:
    """Return a number as the key that a table is sorted by; empty for none.

    >>> sortable(2.0497304), sortable(30067200), sortable(None)
    ('2.0497', '3.0067e+07', '')
    """
    return "" if value is None else f"{value:.5g}"


def size(value: float | None) -> str:
    """Return a number of bytes in the largest fitting binary unit.

    >>> size(512), size(4096), size(268435456)
    ('512 B', '4 KiB', '256 MiB')
    """
    if value is None:
        return MISSING
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"


_FORMATS = {"ms": milliseconds, "x": times, "B": size, "fraction": percent}


def with_unit(value: float | None, unit: str) -> str:
    """Return a number as tables show it, in the format of its unit; the unit follows if the format has none.

    >>> with_unit(0.1984, "ms"), with_unit(1.5, "x"), with_unit(4096, "B"), with_unit(0.92, "fraction")
    ('0.1984 ms', '1.50×', '4 KiB', '92 %')
    >>> with_unit(3124.7, "GB/s"), with_unit(0.0156, "")
    ('3,125 GB/s', '0.0156')
    """
    text = number(value, unit)
    return text if value is None or unit in {"x", "B", "fraction", ""} else f"{text} {unit}"


def number(value: float | None, unit: str) -> str:
    """Return a number in the format of its unit, for a column that is headed by the unit.

    >>> number(0.1984, "ms"), number(3124.7, "GB/s"), number(None, "ms")
    ('0.1984', '3,125', '–')
    """
    return _FORMATS.get(unit, quantity)(value)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a sentence that suggests the known name most similar to ``name``; ``otherwise`` if none is close."""
    from difflib import get_close_matches  # not above: only error messages need it

    listed = sorted(known)
    match = [] if name in listed else get_close_matches(name, listed, n=1, cutoff=0.6)
    return f"Did you mean {match[0]!r}?" if match else otherwise
