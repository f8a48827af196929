"""Which place a kernel comes from: override, lock, cache, hub, in this order."""

from typing import Any

import pytest

from kernels_bench_tools.hub import HubStatus

Place = Any


def origins(outcome: Any) -> list[str]:
    return [one["origin"] for one in outcome.loaded]


def test_a_pin_is_a_commit(place: Place) -> None:
    place.hub.publish(place.repo, place.make("one", factor=3), "v1")
    place.hub.publish(place.repo, place.make("two", factor=5), "v2")
    place.hub.publish(place.repo, place.make("branch", factor=7), "stable")
    last = place.hub.publish(place.repo, place.make("tag", factor=11), tags=("v1.0",))

    outcome = place.load(*[f"{place.repo}@{pin}" for pin in ("1", "v1", "2", "stable", "v1.0")])
    place.hub.log.clear()
    by_commit = place.load(f"{place.repo}@{last}", KERNELS_CACHE=str(place.folder / "empty"))

    assert [one.get("value") for one in outcome.all] == [3, 3, 5, 7, 11]
    assert outcome.loaded[-1]["commit"] == last
    assert by_commit.value == 11
    assert not any(line.endswith("/refs") for line in place.hub.log), "a whole commit needs no list of names"


def test_a_version_without_a_build_here_is_not_replaced_by_another_one(place: Place) -> None:
    place.hub.publish(place.repo, place.make("one", factor=3), "v1")
    place.hub.publish(place.repo, place.make("three", variant="torch-cuda", version=3), "v3")
    place.hub.moved["kernels-community/old-scale"] = place.repo

    assert place.load("kernels-community/old-scale@1").value == 3, "a kernel that was renamed"
    assert place.load(f"{place.repo}@3").status == HubStatus.NO_BUILD_FOR_SYSTEM


def test_a_version_is_resolved_on_the_hub_once_a_branch_each_time_and_both_work_offline_afterwards(
    place: Place,
) -> None:
    version, branch = f"{place.repo}@1", f"{place.repo}@main"
    place.hub.publish(place.repo, place.make("one", factor=3), "v1", "main")
    assert [one["value"] for one in place.load(version, branch).all] == [3, 3]
    place.hub.publish(place.repo, place.make("two", factor=5), "main")
    place.hub.log.clear()

    again = place.load(version)
    assert (origins(again), again.loaded[0]["trusted"]) == (["cache"], "publisher")
    assert place.hub.log == []
    assert place.load(branch).value == 5
    offline = place.load(version, branch, HF_HUB_OFFLINE="1")
    assert [one["value"] for one in offline.all] == [3, 5]


def test_offline_the_cache_is_used_without_a_request(place: Place) -> None:
    place.seed(place.make(), "v1", "main")
    pins = ("1", "v1", "main", "c0ffee" * 6 + "0000", "c0ffeec0ff")

    outcome = place.load(*[f"{place.repo}@{pin}" for pin in pins], HF_HUB_OFFLINE="1")

    assert [one["status"] for one in outcome.all] == [HubStatus.OK] * len(pins)
    (kernel,) = outcome.loaded
    assert (kernel["origin"], kernel["trusted"]) == ("cache", "not checked")
    assert kernel["commit"] == "c0ffee" * 6 + "0000"
    assert "HF_HUB_OFFLINE" in kernel["notes"][0]
    assert place.hub.log == []


@pytest.mark.parametrize("mode", ["down", "silent", "500"])
def test_a_cached_pin_is_used_when_the_hub_fails_and_a_note_says_so(place: Place, mode: str) -> None:
    place.seed(place.make())
    place.hub.mode = mode
    if mode == "down":
        place.hub.close()

    outcome = place.load(f"{place.repo}@1", HF_HUB_ETAG_TIMEOUT="1")

    assert (outcome.status, origins(outcome)) == (HubStatus.OK, ["cache"])
    assert outcome.loaded[0]["notes"][0].startswith("taken from the local cache: the Hub ")


def test_an_override_comes_before_everything(place: Place) -> None:
    place.hub.publish(place.repo, place.make("one"), "v1")
    own = place.make("own", factor=9, version=4)

    outcome = place.load(f"{place.repo}@1", LOCAL_KERNELS=f"some/other=/x:{place.repo}={own}")

    assert (outcome.value, origins(outcome)) == (9, ["override"])
    assert outcome.loaded[0]["notes"] == ["version 1 was requested; this folder has version 4"]
    assert place.hub.log == []


def test_a_folder_is_loaded_from_the_notebook_s_place(place: Place) -> None:
    place.make("own", factor=9)

    outcome = place.load("./own", "./own:Scale", "./own.scale")

    assert [one["value"] for one in outcome.all] == [9, 2, 9]
    assert outcome.loaded[0]["trusted"] == "local"


def test_a_folder_an_override_or_a_lock_that_is_not_there_is_the_user_s_mistake(place: Place) -> None:
    assert place.load("./nowhere").status == "mistake"
    assert place.load(f"{place.repo}@1", KBT_KERNELS_LOCK=str(place.folder / "none.lock")).status == "mistake"
    assert "LOCAL_KERNELS" in place.load(f"{place.repo}@1", LOCAL_KERNELS="nonsense").reason


def test_a_kernel_s_own_kernels_come_by_the_same_rules(place: Place) -> None:
    depends = [{"repo-id": "some-org/base", "version": 1}]
    code = "from kernels import get_kernel_dep\nbase = get_kernel_dep('some-org/base')\n"
    code += "def scale(x):\n    return base.scale(x) * 10\n"
    place.hub.publish(place.repo, place.make(metadata={"kernel-depends": depends}, code=code), "v1")
    place.hub.publish("some-org/base", place.make("base", name="base", factor=3), "v1")

    refused = place.load(f"{place.repo}@1")
    allowed = place.load({"reference": f"{place.repo}@1", "trust": ["some-org"]})

    assert refused.status == HubStatus.UNTRUSTED_PUBLISHER
    assert allowed.value == 30
    assert [one["repo"] for one in allowed.loaded] == [place.repo, "some-org/base"]


def test_what_was_loaded_is_described_for_the_record(place: Place) -> None:
    provenance = {"kernel-builder": {"version": "0.1.0"}, "kernel": {"commit": "a" * 40, "dirty": True}}
    kernel = place.make(sign=True, metadata={"provenance": provenance})
    (kernel / "build/torch-cpu/metadata.json.sigstore").write_text("{}")
    commit = place.hub.publish(place.repo, kernel, "v1")

    outcome = place.load(f"{place.repo}@1", {"reference": place.repo, "version": 1})

    assert len(outcome.loaded) == 1
    described = outcome.loaded[0]
    assert len(described.pop("digest")) == 64
    assert described == {
        "repo": place.repo,
        "requested": f"{place.repo}@1",
        "origin": "cache",
        "commit": commit,
        "variant": "torch-cpu",
        "version": 1,
        "signature": "not checked",
        "dirty": True,
        "trusted": "publisher",
        "notes": [],
    }
