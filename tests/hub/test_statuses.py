"""Every status of the closed set, by the real client against a hub on this machine."""

from collections.abc import Callable
from typing import Any

import pytest

from kernels_bench_tools.hub import HubError, HubStatus

Place = Any
OTHER_KERNELS = """
import sys, types
sys.modules['kernels'] = types.ModuleType('kernels')  # without what 0.17 has
sys.modules['kernels'].__version__ = '{}'
"""
COMMIT = "ab" * 20
ANOTHER_GPU = """
import torch
torch.version.cuda = '13.0'
torch.cuda.is_available = lambda: True
torch.cuda.get_device_capability = lambda *_: (9, 0)
"""


def offline_without(name: str, *, dangling: bool = False) -> Callable[[Place], None]:
    """Return what makes a cache that lacks a file of a build."""

    def prepare(place: Place) -> None:
        place.hub.publish(place.repo, place.make(), "v1")
        place.load(f"{place.repo}@1")
        file = next(place.cache.rglob(f"snapshots/*/build/torch-cpu/{name}"))
        file.unlink()
        if dangling:
            file.symlink_to("../../../../blobs/none")

    return prepare


def changed_since_its_download(place: Place) -> None:
    offline_without("layers.py")(place)
    next(place.cache.rglob("snapshots/*/build/torch-cpu")).joinpath("layers.py").write_text("# changed\n")


def changed_since_it_was_published(place: Place) -> None:
    file = place.seed(place.make(sign=True)) / "build/torch-cpu/layers.py"
    file.write_text(f"{file.read_text()}\n# changed\n")


def published(**options: Any) -> Callable[[Place], None]:
    return lambda place: place.hub.publish(place.repo, place.make(**options), "v1")


def untrusted(place: Place) -> None:
    place.hub.publish("some-org/scale", place.make(), "v1")


def close(place: Place) -> None:
    place.seed(place.make(), "v2")  # of another version
    place.hub.close()


def answers(mode: str) -> Callable[[Place], None]:
    return lambda place: setattr(place.hub, "mode", mode)


def nothing(_: Place) -> None:
    """The hub has no kernel at all."""


def two_versions(place: Place) -> None:
    published()(place)
    place.hub.publish(place.repo, place.make("second", version=2), "v2", "main")


OFFLINE = {"HF_HUB_OFFLINE": "1"}
CUDA = {"backend": {"type": "cuda", "archs": ["10.0a"]}}
# Status: what is there, the reference after the kernel's name, variables and code of the process, words of the reason.
CASES: list[tuple[HubStatus, Callable[[Place], object], Any, dict[str, str], tuple[str, ...]]] = [
    *(
        (HubStatus.DISABLED, published(), "@1", {"USE_HUB_KERNELS": value}, (f"USE_HUB_KERNELS={value}",))
        for value in ("0", "NO")
    ),
    # Without a network, `kernels` itself says that the publisher could not be verified.
    *((HubStatus.HUB_UNREACHABLE, close, pin, {}, ("refused",)) for pin in ("@1", f"@{COMMIT}")),
    (HubStatus.HUB_UNREACHABLE, nothing, "@1", {"HF_ENDPOINT": "http://hub.invalid"}, ()),
    (HubStatus.HUB_UNREACHABLE, answers("silent"), "@1", {"HF_HUB_ETAG_TIMEOUT": "1"}, ()),
    (HubStatus.HUB_ERROR, answers("429"), "@1", {}, ("HTTP 429",)),
    (HubStatus.HUB_ERROR, answers("nonsense"), "@1", {}, ()),
    (HubStatus.UNTRUSTED_PUBLISHER, nothing, {"reference": "a-person/scale@1"}, {}, ("a-person",)),
    (HubStatus.UNTRUSTED_PUBLISHER, untrusted, {"reference": "some-org/scale@1"}, {}, ("some-org",)),
    *((HubStatus.NOT_IN_CACHE, nothing, pin, OFFLINE, (pin,)) for pin in ("@1", "@main", f"@{COMMIT}")),
    (HubStatus.NOT_IN_CACHE, lambda place: place.seed(place.make(), "v2"), "@1", OFFLINE, ("v2",)),
    (HubStatus.NOT_IN_CACHE, lambda place: place.lock(COMMIT), "@1", OFFLINE, (f"locked to {COMMIT[:12]}",)),
    (HubStatus.CACHE_INCOMPLETE, offline_without("layers.py"), "@1", OFFLINE, ("layers.py",)),
    (HubStatus.CACHE_INCOMPLETE, offline_without("layers.py", dangling=True), "@1", OFFLINE, ("layers.py",)),
    (HubStatus.OK, offline_without("layers.py"), "@1", {}, ()),  # downloaded again
    (HubStatus.OK, lambda place: place.seed(place.make(sign=True)), "@1", OFFLINE, ()),
    (HubStatus.FILES_CHANGED, changed_since_it_was_published, "@1", OFFLINE, ("layers.py", "published")),
    (HubStatus.FILES_CHANGED, changed_since_its_download, "@1", {}, ("layers.py", "downloaded")),
    (HubStatus.NO_SUCH_REPO, nothing, "@1", {}, ("kernels-community/scale",)),
    *((HubStatus.NO_SUCH_REVISION, published(), pin, {}, ()) for pin in ("@no-branch", f"@{COMMIT}")),
    (HubStatus.NO_SUCH_VERSION, two_versions, "@3", {}, ("3", "1, 2")),
    (
        HubStatus.NO_BUILD_FOR_SYSTEM,
        lambda place: (
            place.make(variant="torch-cuda"),
            published(variant="torch25-cxx11-cpu-mips-linux")(place),
        ),
        "@1",
        {},
        ("torch-cuda: ", "CPU (mips) does not match"),
    ),
    (
        HubStatus.ARCH_UNSUPPORTED,
        published(metadata=CUDA, code="raise SystemExit('a build for another card ends the process')"),
        {"backend": "cpu"},
        {"before": ANOTHER_GPU},
        ("CUDA capability 9.0", "10.0a"),
    ),
    *((HubStatus.BACKEND_NOT_HERE, published(), {"backend": kind}, {}, ()) for kind in ("rocm", "xpu")),
    (HubStatus.KERNELS_TOO_OLD, published(metadata={"kernels-minver": "99.0.0"}), "@1", {}, ("99.0",)),
    *(
        (
            HubStatus.KERNELS_TOO_OLD,
            published(),
            "@1",
            {"before": OTHER_KERNELS.format(version)},
            (version, "0.17"),
        )
        for version in ("0.12.0", "0.18.0")
    ),
    (HubStatus.MISSING_DEPENDENCY, published(metadata={"python-depends": ["helion"]}), "@1", {}, ("helion",)),
    (HubStatus.MISSING_DEPENDENCY, published(code="import no_such_package"), "@1", {}, ("no_such_package",)),
    *(
        (
            HubStatus.MISSING_DEPENDENCY,
            nothing,
            "@1",
            {"before": f"import kernels, sys\nsys.modules[{package!r}] = None"},
            (repr(package),),
        )
        for package in ("kernels", "torch")
    ),
    (HubStatus.BAD_METADATA, published(metadata={"license": None}), "@1", {}, ("license",)),
    (HubStatus.IMPORT_FAILED, published(code="raise RuntimeError('no\\nluck')"), "@1", {}, ("no luck",)),
    (HubStatus.NO_SUCH_LAYER, published(), "@1:Missing", {}, ("Missing", "Scale")),
    (HubStatus.NO_SUCH_LAYER, published(), "@1.missing", {}, ("missing", "layers, scale")),
]


@pytest.mark.parametrize(
    ("status", "prepare", "asked", "process", "words"),
    CASES,
    ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)],
)
def test_a_request_has_its_status_and_a_reason_of_one_line(
    place: Place, status: HubStatus, prepare: Any, asked: Any, process: dict[str, str], words: tuple[str, ...]
) -> None:
    prepare(place)
    place.hub.log.clear()
    call = f"{place.repo}{asked}" if isinstance(asked, str) else {"reference": f"{place.repo}@1", **asked}

    outcome = place.load(call, **process)

    assert outcome.status == status, outcome
    assert outcome.seconds < 30  # a silent hub waits for a minute
    reason = "" if status is HubStatus.OK else outcome.reason
    assert all(word in reason for word in words), reason
    assert "\n" not in reason
    assert str(place.folder) not in reason, "a path of this machine"
    assert not any(advice in reason for advice in ("check_arch", "trust_remote_code")), (
        "to switch a check off"
    )
    if status is HubStatus.DISABLED:
        assert not outcome.imported
    if status in {HubStatus.DISABLED, HubStatus.NOT_IN_CACHE}:
        assert place.hub.log == []
    if status is HubStatus.UNTRUSTED_PUBLISHER:
        assert not any("/resolve/" in line for line in place.hub.log), "nothing is downloaded"


def test_every_status_has_a_test() -> None:
    assert {case[0] for case in CASES} == set(HubStatus)


@pytest.mark.parametrize("trust", ["some-org", "some-org/scale"])
def test_an_allow_list_admits_its_publisher(place: Place, trust: str) -> None:
    untrusted(place)

    allowed = place.load({"reference": "some-org/scale@1", "trust": [trust]})
    refused = place.load({"reference": "some-org/scale@1", "trust": ["other-org"]})

    assert (allowed.status, allowed.loaded[0]["trusted"]) == (HubStatus.OK, "allow-list")
    assert refused.status == HubStatus.UNTRUSTED_PUBLISHER, "an earlier download is no trust"


def test_two_builds_with_one_id_do_not_mix_in_a_process(place: Place) -> None:
    published(metadata={"id": "_scale"})(place)
    place.hub.publish(place.repo, place.make("second", metadata={"id": "_scale"}, factor=3), "v2")

    outcome = place.load(f"{place.repo}@1", f"{place.repo}@2")

    assert [one["status"] for one in outcome.all] == [HubStatus.OK, HubStatus.IMPORT_FAILED]


def test_the_text_of_an_error_ends_in_the_status() -> None:
    assert str(HubError(HubStatus.NOT_IN_CACHE, "it is not there")).endswith("[not-in-cache]")
