import pytest

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub import get_kernel
from kernels_bench_tools.hub.reference import FORMS, parse_reference

COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    ("text", "place", "pin", "layer", "function"),
    [
        ("a/b@3", "a/b", "3", "", ""),
        ("a/b@v3", "a/b", "3", "", ""),
        ("a/b@main", "a/b", "main", "", ""),
        ("a/b@v1.2.0", "a/b", "v1.2.0", "", ""),
        ("a/b@feature/new-one", "a/b", "feature/new-one", "", ""),
        (f"a/b@{COMMIT}", "a/b", COMMIT, "", ""),
        ("a/b@3:RMSNorm", "a/b", "3", "RMSNorm", ""),
        ("a/b@3.rms_norm", "a/b", "3", "", "rms_norm"),
        (f"a/b@{COMMIT}.rms_norm", "a/b", COMMIT, "", "rms_norm"),
        ("a/with.dots@3", "a/with.dots", "3", "", ""),
        ("./path", "./path", "", "", ""),
        ("../my.kernels/one", "../my.kernels/one", "", "", ""),
        ("/some/path:Layer", "/some/path", "", "Layer", ""),
        ("./path.function", "./path", "", "", "function"),
        ("./", "./", "", "", ""),
    ],
)
def test_references_are_parsed(text: str, place: str, pin: str, layer: str, function: str) -> None:
    reference = parse_reference(text)

    assert place == (reference.folder if text.startswith((".", "/")) else reference.repo)
    assert (reference.pin, reference.layer, reference.function) == (pin, layer, function)


def test_the_keyword_forms_mean_the_same() -> None:
    assert parse_reference("a/b:Layer", version=3).name == parse_reference("a/b@3:Layer").name
    assert parse_reference("a/b", revision="v1").revision == "v1"
    assert parse_reference("a/b.fn", version=1).function == "fn"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a/b",
        "a/b/c@1",
        "a/b@",
        "a/b@>=1",
        "a/b@1@2",
        "a/b@x y",
        "a/b@../x",
        "a b/c@1",
        "@1",
        "a/b@-1",
    ],
)
def test_an_invalid_reference_is_an_error_that_lists_the_forms(text: str) -> None:
    with pytest.raises(KbtError) as caught:
        get_kernel(text)

    assert FORMS in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"version": 1, "revision": "main"},
        {"version": True},
        {"version": "main"},
        {"version": -1},
        {"revision": ">=1"},
    ],
)
def test_a_version_is_a_number_and_there_is_one_pin(arguments: dict[str, object]) -> None:
    with pytest.raises(KbtError):
        get_kernel("a/b", **arguments)
    with pytest.raises(KbtError, match="more than one"):
        get_kernel("a/b@1", version=1)


def test_trust_must_be_a_list_of_names() -> None:
    for trust in (True, "org", [1]):
        with pytest.raises(KbtError, match="not a list of publishers"):
            get_kernel("a/b@1", trust=trust)
