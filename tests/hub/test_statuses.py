"""Every status of the closed set, by the real client against a hub on this machine."""

import time
from typing import Any

import pytest

from kernels_bench_tools.hub import HubError, HubStatus

Place = Any

COVERED: set[str] = set()


def covers(*statuses: HubStatus) -> Any:
    """Note which statuses a test is about, so that the last test can tell if one was forgotten."""
    COVERED.update(statuses)
    return lambda function: function


@covers(HubStatus.OK)
def test_a_kernel_loads_and_computes(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")

    outcome = place.load(f"{place.repo}@1", f"{place.repo}@1:Scale", f"{place.repo}@1.scale")

    assert [one["status"] for one in outcome.all] == ["ok", "ok", "ok"]
    assert outcome.value == 2


@covers(HubStatus.DISABLED)
@pytest.mark.parametrize("value", ["0", "off", "NO", "False"])
def test_switched_off_nothing_is_imported_or_requested(place: Place, value: str) -> None:
    place.hub.publish(place.repo, place.make(), "v1")

    outcome = place.load(f"{place.repo}@1", USE_HUB_KERNELS=value)

    assert outcome.status == HubStatus.DISABLED
    assert outcome.reason == f"hub kernels are switched off (USE_HUB_KERNELS={value})"
    assert not outcome.imported
    assert place.hub.log == []


@covers(HubStatus.HUB_UNREACHABLE)
@pytest.mark.parametrize("pin", ["1", "ab" * 20])
def test_a_hub_that_is_down_is_unreachable_not_untrusted(place: Place, pin: str) -> None:
    place.hub.close()

    outcome = place.load(f"{place.repo}@{pin}")

    assert outcome.status == HubStatus.HUB_UNREACHABLE
    assert outcome.reason == "the hub cannot be reached: [Errno 111] Connection refused"


def test_a_name_that_does_not_resolve_is_unreachable(place: Place) -> None:
    outcome = place.load(f"{place.repo}@1", HF_ENDPOINT="http://hub.invalid")

    assert outcome.status == HubStatus.HUB_UNREACHABLE


@pytest.mark.parametrize("mode", ["silent", "silent-downloads"])
def test_a_hub_without_an_answer_is_abandoned_at_the_deadline(place: Place, mode: str) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.hub.mode = mode
    # Imported before, because the deadline is the hub's and not Python's.
    before = "import kernels"
    start = time.monotonic()

    outcome = place.load(f"{place.repo}@1", before=before, KBT_HUB_DEADLINE_S="1.5")

    assert outcome.status == HubStatus.HUB_UNREACHABLE
    assert outcome.reason == "the hub did not answer within 1.5 s"
    assert 1.5 <= outcome.seconds < 20  # the hub waits for a minute
    assert time.monotonic() - start < 40, "the thread that waits must not hold up the process"


@covers(HubStatus.HUB_ERROR)
@pytest.mark.parametrize("mode", ["500", "429"])
def test_an_error_of_the_hub_is_reported_with_its_code(place: Place, mode: str) -> None:
    place.hub.mode = mode

    outcome = place.load(f"{place.repo}@1")

    assert outcome.status == HubStatus.HUB_ERROR
    assert outcome.reason == f"the hub answered HTTP {mode} for {place.repo}"


def test_a_page_instead_of_an_answer_is_an_error_of_the_hub(place: Place) -> None:
    place.hub.mode = "nonsense"

    assert place.load(f"{place.repo}@1").status == HubStatus.HUB_ERROR


@covers(HubStatus.NOT_IN_CACHE)
def test_offline_with_an_empty_cache_says_so(place: Place) -> None:
    names = [f"{place.repo}@{pin}" for pin in ("1", "main", "ab" * 20)]

    outcome = place.load(*names, HF_HUB_OFFLINE="1")

    for name, one in zip(names, outcome.all, strict=True):
        assert one["status"] == HubStatus.NOT_IN_CACHE
        assert f"{name} is not in the local cache" in one["reason"]
    assert place.hub.log == []


def test_offline_the_versions_that_are_there_are_named(place: Place) -> None:
    place.seed(place.make(), "v2")

    outcome = place.load(f"{place.repo}@1", HF_HUB_OFFLINE="1")

    assert outcome.status == HubStatus.NOT_IN_CACHE
    assert "(which has v2)" in outcome.reason


@covers(HubStatus.CACHE_INCOMPLETE)
def test_a_missing_file_is_named_offline(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.load(f"{place.repo}@1")
    next(place.cache.rglob("snapshots/*/build/torch-cpu/layers.py")).unlink()

    outcome = place.load(f"{place.repo}@1", HF_HUB_OFFLINE="1")

    assert outcome.status == HubStatus.CACHE_INCOMPLETE
    assert outcome.reason == f"the local copy of {place.repo} lacks layers.py"


def test_a_missing_file_is_downloaded_again(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.load(f"{place.repo}@1")
    next(place.cache.rglob("snapshots/*/build/torch-cpu/layers.py")).unlink()

    assert place.load(f"{place.repo}@1").status == HubStatus.OK


def test_a_dangling_link_in_the_cache_is_a_missing_file(place: Place) -> None:
    snapshot = place.seed(place.make())
    (snapshot / "build/torch-cpu/layers.py").unlink()
    (snapshot / "build/torch-cpu/layers.py").symlink_to("../../../../blobs/none")

    outcome = place.load(f"{place.repo}@1", HF_HUB_OFFLINE="1")

    assert (outcome.status, "layers.py" in outcome.reason) == (HubStatus.CACHE_INCOMPLETE, True)


@covers(HubStatus.FILES_CHANGED)
@pytest.mark.parametrize("name", ["layers.py", "__init__.py"])
def test_a_file_that_its_publisher_did_not_write_is_refused_by_name(place: Place, name: str) -> None:
    snapshot = place.seed(place.make(sign=True))
    assert place.load(f"{place.repo}@1", HF_HUB_OFFLINE="1").status == HubStatus.OK
    file = snapshot / "build/torch-cpu" / name
    file.write_text(file.read_text() + "\n# changed\n")

    outcome = place.load(f"{place.repo}@1", HF_HUB_OFFLINE="1")

    assert outcome.status == HubStatus.FILES_CHANGED
    assert outcome.reason == f"{name} of {place.repo} (torch-cpu) is not what it was when it was published"


def test_a_file_that_changed_since_its_download_is_refused_also_without_a_published_digest(
    place: Place,
) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.load(f"{place.repo}@1")
    file = next(place.cache.rglob("snapshots/*/build/torch-cpu/layers.py"))
    text = file.read_text()
    file.unlink()
    file.write_text(text + "\n# changed\n")

    outcome = place.load(f"{place.repo}@1")

    assert outcome.status == HubStatus.FILES_CHANGED
    assert (
        outcome.reason == f"layers.py of {place.repo} (torch-cpu) is not what it was when it was downloaded"
    )


@covers(HubStatus.NO_SUCH_REPO)
def test_an_unknown_kernel(place: Place) -> None:
    outcome = place.load("kernels-community/none@1")

    assert outcome.status == HubStatus.NO_SUCH_REPO
    assert outcome.reason == "the hub has no kernel kernels-community/none, or it is not public"


@covers(HubStatus.NO_SUCH_REVISION)
def test_an_unknown_revision(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")

    outcome = place.load(f"{place.repo}@no-branch", f"{place.repo}@{'ab' * 20}")

    assert [one["status"] for one in outcome.all] == [HubStatus.NO_SUCH_REVISION] * 2


@covers(HubStatus.NO_SUCH_VERSION)
def test_an_unknown_version(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.hub.publish(place.repo, place.make("second", version=2), "v2", "main")
    pins = ["3", ">=3", ">2,<2"]

    outcome = place.load(*[f"{place.repo}@{pin}" for pin in pins])

    for pin, one in zip(pins, outcome.all, strict=True):
        assert one["status"] == HubStatus.NO_SUCH_VERSION
        assert one["reason"] == f"{place.repo} has no version {pin}; its versions: 1, 2"


@covers(HubStatus.UNTRUSTED_PUBLISHER)
@pytest.mark.parametrize("publisher", ["some-org", "a-person"])
def test_an_untrusted_publisher_is_refused_before_anything_is_downloaded(
    place: Place, publisher: str
) -> None:
    place.hub.publish(f"{publisher}/scale", place.make(), "v1")

    outcome = place.load(f"{publisher}/scale@1")

    assert outcome.status == HubStatus.UNTRUSTED_PUBLISHER
    assert publisher in outcome.reason
    assert "trust_remote_code" not in outcome.reason
    assert not any("/resolve/" in line for line in place.hub.log)


@pytest.mark.parametrize("trust", ["some-org", "some-org/scale"])
def test_an_allow_list_admits_its_publisher(place: Place, trust: str) -> None:
    place.hub.publish("some-org/scale", place.make(), "v1")

    allowed = place.load({"reference": "some-org/scale@1", "trust": [trust]})
    refused = place.load({"reference": "some-org/scale@1", "trust": ["other-org"]})

    assert (allowed.status, allowed.loaded[0]["trusted"]) == (HubStatus.OK, "allow-list")
    assert refused.status == HubStatus.UNTRUSTED_PUBLISHER, "an earlier download is no trust"


@covers(HubStatus.NO_BUILD_FOR_SYSTEM)
def test_a_kernel_without_a_build_for_this_system_lists_the_reasons(place: Place) -> None:
    place.make(variant="torch-cuda")
    place.hub.publish(place.repo, place.make(variant="torch25-cxx11-cpu-mips-linux"), "v1")

    outcome = place.load(f"{place.repo}@1")

    assert outcome.status == HubStatus.NO_BUILD_FOR_SYSTEM
    assert outcome.reason.startswith(f"no build of {place.repo} fits this system: ")
    assert "torch-cuda: " in outcome.reason
    assert "torch25-cxx11-cpu-mips-linux: CPU (mips) does not match" in outcome.reason
    assert str(place.folder) not in outcome.reason


@covers(HubStatus.ARCH_UNSUPPORTED)
def test_a_build_for_another_gpu_is_refused_before_its_import(place: Place) -> None:
    code = "raise SystemExit('a build for another card ends the process')"
    archs = {"backend": {"type": "cuda", "archs": ["10.0a"]}}
    place.hub.publish(place.repo, place.make(metadata=archs, code=code), "v1")
    # There is no GPU here: torch is made to report one.
    before = "import torch\ntorch.version.cuda = '13.0'\ntorch.cuda.is_available = lambda: True\n"
    before += "torch.cuda.get_device_capability = lambda *_: (9, 0)\n"

    outcome = place.load({"reference": f"{place.repo}@1", "backend": "cpu"}, before=before)

    assert outcome.status == HubStatus.ARCH_UNSUPPORTED
    assert "CUDA capability 9.0" in outcome.reason
    assert "10.0a" in outcome.reason
    assert "check_arch" not in outcome.reason


@covers(HubStatus.BACKEND_NOT_HERE)
def test_a_backend_or_device_that_is_not_here(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")

    mapped = place.load({"reference": {"cuda": f"{place.repo}@1", "rocm": f"{place.repo}@1"}})
    asked = place.load({"reference": f"{place.repo}@1", "backend": "rocm"})

    assert mapped.status == asked.status == HubStatus.BACKEND_NOT_HERE
    assert mapped.reason == "there is a kernel for cuda, rocm here, and this device is cpu"


@covers(HubStatus.KERNELS_TOO_OLD)
def test_a_kernel_that_wants_newer_kernels(place: Place) -> None:
    place.hub.publish(place.repo, place.make(metadata={"kernels-minver": "99.0.0"}), "v1")

    outcome = place.load(f"{place.repo}@1")

    assert outcome.status == HubStatus.KERNELS_TOO_OLD
    assert "requires kernels>=99.0" in outcome.reason


@covers(HubStatus.MISSING_DEPENDENCY)
def test_a_package_that_is_missing_is_named(place: Place) -> None:
    place.hub.publish(place.repo, place.make(metadata={"python-depends": ["helion"]}), "v1")
    place.hub.publish(place.repo, place.make("second", code="import no_such_package"), "v2")

    declared = place.load(f"{place.repo}@1")
    undeclared = place.load(f"{place.repo}@2")

    assert declared.status == undeclared.status == HubStatus.MISSING_DEPENDENCY
    assert "`helion`" in declared.reason
    assert "'no_such_package'" in undeclared.reason


@pytest.mark.parametrize("package", ["kernels", "torch"])
def test_without_the_hub_s_client_or_torch_that_is_what_is_missing(place: Place, package: str) -> None:
    outcome = place.load(f"{place.repo}@1", before=f"import kernels, sys\nsys.modules[{package!r}] = None")

    assert outcome.status == HubStatus.MISSING_DEPENDENCY
    assert outcome.reason == f"needs the package {package!r}, which is not installed in this environment"


@covers(HubStatus.BAD_METADATA)
def test_metadata_that_cannot_be_read(place: Place) -> None:
    place.hub.publish(place.repo, place.make(metadata={"license": None}), "v1")

    outcome = place.load(f"{place.repo}@1")

    assert outcome.status == HubStatus.BAD_METADATA
    assert "missing field `license`" in outcome.reason


@covers(HubStatus.IMPORT_FAILED)
def test_a_kernel_whose_import_fails(place: Place) -> None:
    place.hub.publish(place.repo, place.make(code="raise RuntimeError('no\\nluck')"), "v1")

    outcome = place.load(f"{place.repo}@1")

    assert outcome.status == HubStatus.IMPORT_FAILED
    assert outcome.reason == f"{place.repo}@1 does not load: RuntimeError: no luck"


def test_two_builds_with_one_id_do_not_mix_in_a_process(place: Place) -> None:
    place.hub.publish(place.repo, place.make(metadata={"id": "_scale"}), "v1")
    place.hub.publish(place.repo, place.make("second", metadata={"id": "_scale"}, factor=3), "v2")

    outcome = place.load(f"{place.repo}@1", f"{place.repo}@2")

    assert [one["status"] for one in outcome.all] == [HubStatus.OK, HubStatus.IMPORT_FAILED]
    assert "two notebooks" in outcome.reason


@covers(HubStatus.NO_SUCH_LAYER)
def test_an_unknown_layer_or_function_lists_the_known_ones(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")

    layer = place.load(f"{place.repo}@1:Missing")
    function = place.load(f"{place.repo}@1.missing")

    assert layer.status == function.status == HubStatus.NO_SUCH_LAYER
    assert layer.reason.startswith(f"{place.repo}@1 has no layer Missing; it has: Scale")
    assert "layers, scale" in function.reason


def test_every_status_has_a_test() -> None:
    assert set(HubStatus) == COVERED


def test_the_reason_is_one_line_that_ends_in_the_status() -> None:
    error = HubError(HubStatus.NOT_IN_CACHE, "it is not there")

    assert str(error) == "it is not there [not-in-cache]"
