from pathlib import Path

import pytest

from kernels_bench_tools.records.device import (
    _cpu_model,
    _gpu_device,
    cpu_device,
    cuda_device,
    current_device,
    hardware_id,
)
from kernels_bench_tools.text.names import slugify


@pytest.mark.parametrize(
    ("text", "slug"),
    [("NVIDIA H200", "nvidia-h200"), ("a/b:c.d", "a-b-c-d"), ("  ", "unnamed"), ("<script>", "script")],
)
def test_a_slug_is_safe_in_ids_and_urls(text: str, slug: str) -> None:
    assert slugify(text) == slug


def test_a_cpu_is_named_by_its_flags_too(tmp_path: Path) -> None:
    def named(flags: str, stepping: int = 1) -> tuple[str, str]:
        text = "".join(
            f"processor : {core}\nmodel name : AMD EPYC\nstepping : {stepping}\ncpu MHz : {2500 + core}\nflags : {flags}\n\n"
            for core in range(2)
        )
        (tmp_path / "cpuinfo").write_text(text)
        return _cpu_model(tmp_path / "cpuinfo")

    model, digest = named("fpu sse avx2")

    assert model == "AMD EPYC"
    assert len(digest) == 6
    assert named("avx2 fpu sse") == (model, digest)
    assert len({digest, named("fpu sse avx2 avx512f")[1], named("fpu sse avx2", stepping=2)[1]}) == 3
    assert cpu_device().slug.endswith(_cpu_model()[1])


def test_a_system_without_cpuinfo_has_a_name(tmp_path: Path) -> None:
    model, digest = _cpu_model(tmp_path / "missing")

    assert model
    assert digest == ""


GPUS = """\
GPU 0: NVIDIA H200 (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.18gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.18gb     Device  1: (UUID: MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/2/0)
GPU 1: NVIDIA H200 (UUID: GPU-11111111-d33d-2b2c-524d-9e3d8d2b8a77)
"""
FIRST, SECOND = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", "GPU-11111111-d33d-2b2c-524d-9e3d8d2b8a77"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi that, like it, selects a GPU by its index or its whole UUID."""
    (tmp_path / "list").write_text(GPUS)
    script = tmp_path / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in -L) cat {tmp_path}/list;; '
        f"*--id=0|*--id={FIRST}|*nounits) echo '580.1, NVIDIA H200';; *) exit 6;; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return script


def show(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_the_device_is_the_cpu_if_all_gpus_are_hidden(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(visible: str | None) -> tuple[str, str]:
        show(monkeypatch, visible)
        _gpu_device.cache_clear()
        device = current_device.__wrapped__()  # not the one of this process
        return device.slug, device.driver

    assert found(None) == found("0") == found("GPU-5d5b") == ("nvidia-h200", "580.1")
    assert found("")[0] == found("-1")[0] == cpu_device().slug
    smi.write_text("#!/bin/sh\necho '580.1, [N/A]'\n")
    assert found(None)[0] == cpu_device().slug


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [
        (None, FIRST),
        ("0", FIRST),
        (" 00,1", FIRST),
        (FIRST, FIRST),
        ("GPU-5d5b", FIRST),
        ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", FIRST),
        (f"MIG-{FIRST}/2/0", FIRST),
        ("1", SECOND),
        ("GPU-1111,0", SECOND),
    ],
)
@pytest.mark.usefixtures("smi")
def test_a_gpu_is_the_same_however_it_is_selected(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, gpu: str
) -> None:
    show(monkeypatch, visible)

    assert hardware_id(cuda_device("NVIDIA H200")) == gpu


def test_without_a_list_gpus_are_told_apart_by_index(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.write_text("#!/bin/sh\nexit 9\n")

    def named(visible: str | None) -> str:
        show(monkeypatch, visible)
        return hardware_id(cuda_device("NVIDIA H200"))

    assert named(None) == named("0") == named("0,1") != named("1")
