"""Kernels that `kbt hub build` compiles from source: what it builds, and which of them `get_kernel` loads."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.source import BUILD, NOARCH, build_source, make_source, variant_of
from projects import commit_all, contents, git, run_kbt

from kernels_bench_tools.cli import hub
from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub import HubStatus
from kernels_bench_tools.hub.build.compilers import Compilers
from kernels_bench_tools.hub.build.plan import make_plan
from kernels_bench_tools.hub.source import CudaGeneral, read_source
from kernels_bench_tools.measure.operator import failed_status
from kernels_bench_tools.records.hub import BuildRequest
from kernels_bench_tools.records.record import Status

Place = Any
SCALE = "kernels-community/scale@1"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, processes: Any) -> Path:
    """A folder with a source and its build."""
    folder = tmp_path_factory.mktemp("compiled")
    built = build_source(
        processes, make_source(folder / "source"), output=folder / "hub-builds", commit="c0ffee" * 6 + "0000"
    )
    assert (built.code, built.err) == (0, ""), built.out
    return folder


@pytest.fixture
def builds(compiled: Path, place: Place) -> Path:
    """A copy of the build in the project of ``place``, where cells look for it; its source is elsewhere."""
    return Path(shutil.copytree(compiled / "hub-builds", place.folder / "hub-builds"))


def compilers(**different: Any) -> Compilers:
    known = {"cxx": "g++", "nvcc": "nvcc", "ninja": "ninja", "torch": "2.11.0", "cuda": "13.0"}
    lists = {"archs": ["9.0a"], "torch_includes": ["/none/torch/include"], "libraries": []}
    return Compilers(**{**known, **lists, **different})


def plan(folder: Path, text: str, **options: Any) -> Any:
    request = BuildRequest(sources=[], output=str(folder / "out"), **options)
    return make_plan(read_source(make_source(folder / "source", build=text)), request, compilers())


def test_a_source_build_is_loaded_offline_and_the_record_says_so(place: Place, builds: Path) -> None:
    outcome = place.load(SCALE, HF_HUB_OFFLINE="1")

    assert outcome.value == 2
    (kernel,) = outcome.loaded
    assert (kernel["origin"], kernel["trusted"]) == ("source build", "local")
    assert kernel["commit"] == "c0ffee" * 6 + "0000"
    assert len(kernel["digest"]) == 64
    assert "built from source with g++" in kernel["notes"][0]
    assert place.hub.log == []


@pytest.mark.usefixtures("builds")
def test_a_cell_of_a_build_loads_the_source_build_of_its_project(place: Place) -> None:
    (place.folder / "deep").mkdir()
    code = f"from kernels_bench_tools import get_kernel\nget_kernel({SCALE!r})\n"
    (place.folder / "deep" / "n.md").write_text(f"```python id=a\n{code}```\n")

    done = run_kbt(place.folder, "build", "--env", "current", **place.variables(USE_HUB_KERNELS="1"))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("pin", ["1", "c0ffeec0ff"])
def test_a_source_build_comes_before_cache_and_hub(place: Place, builds: Path, pin: str) -> None:
    place.seed(place.make("cached", factor=3))
    place.hub.publish(place.repo, place.make("published", factor=5), "v1")

    assert place.load(f"{place.repo}@{pin}").value == 2


@pytest.mark.parametrize("pin", ["2", "main"])
def test_another_version_is_not_replaced_by_a_source_build(place: Place, builds: Path, pin: str) -> None:
    place.hub.publish(place.repo, place.make("published", factor=5, version=2), "v2", "main")

    assert place.load(f"{place.repo}@{pin}").value == 5


def test_an_override_and_a_lock_come_before_a_source_build(place: Place, builds: Path) -> None:
    place.lock(place.hub.publish(place.repo, place.make("published", factor=5), "v1"))
    override = place.make("override", factor=3)

    assert place.load(SCALE).value == 5
    assert place.load(SCALE, LOCAL_KERNELS=f"{place.repo}={override}").value == 3


def test_another_folder_of_builds_is_named_by_a_variable_or_a_setting(place: Place, builds: Path) -> None:
    builds.rename(place.folder / "elsewhere")
    by_variable = place.load(SCALE, HF_HUB_OFFLINE="1", KBT_HUB_BUILDS=str(place.folder / "elsewhere"))
    (place.folder / "pyproject.toml").write_text("[tool.kbt]\nhub_builds = 'elsewhere'\n")

    assert (by_variable.value, place.load(SCALE, HF_HUB_OFFLINE="1").value) == (2, 2)


def test_a_library_does_not_contain_the_names_of_this_machines_folders(compiled: Path, builds: Path) -> None:
    [library] = builds.rglob("*.abi3.so")
    content = library.read_bytes()

    assert b"torch_binding.cpp" in content
    assert os.fsencode(compiled) not in content
    assert b"site-packages" not in content


def damage(builds: Path) -> None:
    (library,) = variant_of(builds).glob("*.so")
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)


def for_another_gpu(builds: Path) -> None:
    metadata = variant_of(builds) / "metadata.json"
    described = json.loads(metadata.read_text())
    metadata.write_text(json.dumps(described | {"backend": {"type": "cuda", "archs": ["9.0a"]}}))


UNUSABLE: dict[str, tuple[Any, HubStatus, str]] = {
    "not finished": (
        lambda builds: shutil.rmtree(builds / "kernels-community/scale/build"),
        HubStatus.CACHE_INCOMPLETE,
        "kbt hub build",
    ),
    "damaged": (damage, HubStatus.FILES_CHANGED, ".so"),
    "for another torch": (
        lambda builds: variant_of(builds).rename(
            variant_of(builds).parent / "torch18-cxx11-cpu-x86_64-linux"
        ),
        HubStatus.NO_BUILD_FOR_SYSTEM,
        "1.8",
    ),
    "for another GPU": (for_another_gpu, HubStatus.ARCH_UNSUPPORTED, "9.0a"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_source_build_that_cannot_be_used_is_an_error(place: Place, builds: Path, what: str) -> None:
    change, status, word = UNUSABLE[what]
    change(builds)
    place.hub.publish(place.repo, place.make("published", factor=5), "v1")
    before = "import torch\ntorch.version.cuda = '13.0'\ntorch.cuda.is_available = lambda: True\n"
    before += "torch.cuda.get_device_capability = lambda *_: (10, 0)\n"

    outcome = place.load(
        {"reference": SCALE, "backend": "cpu"}, before=before if what == "for another GPU" else ""
    )

    assert outcome.status == status
    assert word in outcome.reason


def test_files_that_do_not_match_are_left_out_and_later_builds_compile_what_is_missing_edited_or_damaged(
    place: Place,
) -> None:
    folder, output = make_source(place.folder / "source"), place.folder / "hub-builds"

    def build(**options: Any) -> Any:
        return build_source(place.processes, folder, output=output, **options)

    assert build(only=["*scale.cpp"]).compiled == ["scale.cpp", "torch_binding.cpp"]
    assert "1 of 2 files, by --only" in (variant_of(output) / "source-build.json").read_text()
    shifted = place.load(f"{SCALE}.shift")
    assert shifted.status == "raised"
    assert "was left out of this build from source" in shifted.reason
    assert failed_status(RuntimeError(shifted.reason)) is Status.UNSUPPORTED
    assert place.load(SCALE).value == 2
    assert build().compiled == ["shift.cpp"]

    edited = folder / "kernel" / "scale.cpp"
    edited.write_text(edited.read_text().replace("x * 2", "x * 7"))
    assert place.load(SCALE).status == HubStatus.FILES_CHANGED
    assert build().compiled == ["scale.cpp"]
    assert place.load(SCALE).value == 7

    shutil.rmtree(output / place.repo / "build")  # as an interrupted one leaves it
    (compiled,) = output.rglob("*shift.cpp.o")
    compiled.unlink()
    continued = build()
    assert (continued.code, continued.compiled) == (0, ["shift.cpp"])

    compiled.write_bytes(b"damaged")
    again = build()
    assert (again.code, again.compiled) == (0, ["shift.cpp"])
    before = compiled.stat()
    compiled.write_bytes(b"damaged")
    os.utime(compiled, ns=(before.st_atime_ns, before.st_mtime_ns))
    failed = build()
    assert failed.code == 1
    assert "the linker failed" in failed.out
    assert "remove " in failed.out
    assert place.load(SCALE).value == 7


def test_a_kernel_in_python_is_only_assembled(place: Place) -> None:
    folder, output = make_source(place.folder / "source", build=NOARCH), place.folder / "hub-builds"

    built = build_source(place.processes, folder, folder, output=output, backend="cpu")

    assert (built.code, built.compiled) == (0, [])
    assert variant_of(output).name == "torch-cpu"
    assert place.load(SCALE).value == 2


def test_a_file_that_does_not_compile_is_shown_and_other_kernels_are_built(place: Place) -> None:
    broken = make_source(place.folder / "broken", build=BUILD.replace("community/scale", "community/broken"))
    (broken / "kernel" / "scale.cpp").write_text("int64_t scale(int64_t x) { return y; }\n")
    (broken / "kernel" / "shift.cpp").write_text("#include <no/such.h>\n")
    folder, output = make_source(place.folder / "source"), place.folder / "hub-builds"

    built = build_source(place.processes, broken, folder, output=output)

    assert built.code == 1
    assert all(text in built.out for text in ("2 of 3", "no/such.h", "build.log"))
    assert place.load(SCALE).value == 2


def test_the_commit_is_that_of_the_sources_own_repository(tmp_path: Path) -> None:
    folder = make_source(tmp_path / "repository" / "scale")
    assert read_source(folder).commit() == ("", None)
    git(tmp_path / "repository", "init", "-q")
    # A repository that has the folder by accident, such as a project's, ignores it.
    git(tmp_path / "repository", "commit", "-qm", "empty", "--allow-empty")
    assert read_source(folder).commit() == ("", None)
    commit_all(tmp_path / "repository")

    head = git(tmp_path / "repository", "rev-parse", "HEAD").strip()
    assert read_source(folder).commit() == (head, False)
    make_source(folder, factor=3)
    assert read_source(folder).commit() == (head, True)


CUDA = """\
[general]
name = "scale"
backends = ["cuda", "metal"]

[general.cuda]
minver = "12.8"

[torch]
src = ["torch-ext/torch_binding.cpp"]

[kernel.all]
backend = "cuda"
depends = ["torch"]
src = ["kernel/scale.cu", "kernel/shift.cu", "kernel/scale.cpp"]

[kernel.ampere]
backend = "cuda"
depends = ["torch"]
cuda-capabilities = ["8.0"]
src = ["kernel/ampere.cu"]
"""


@pytest.mark.parametrize(
    ("name", "code"),
    [(".lock", 0), ("kernels-community/scale/objects/torch-cpu", 2)],
)
def test_nothing_is_written_behind_a_link_in_the_folder_of_builds(
    tmp_path: Path, name: str, code: int
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").write_text("[tool.kbt]\n")
    outside = tmp_path / "outside" / "assembled"
    outside.mkdir(parents=True)
    (outside / "file").write_text("kept")
    link = tmp_path / "project" / "hub-builds" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside / "file" if name == ".lock" else outside.parent)
    source = make_source(tmp_path / "source", build=NOARCH)

    done = run_kbt(tmp_path / "project", "hub", "build", str(source), "--backend", "cpu")

    assert (done.returncode, contents(outside.parent)) == (code, {"assembled/file": b"kept"}), done.stderr
    assert "Traceback" not in done.stderr


def test_components_for_other_gpus_and_files_that_do_not_match_are_left_out(tmp_path: Path) -> None:
    for name in ("scale.cu", "shift.cu"):
        (tmp_path / "source" / "kernel").mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / "kernel" / name).touch()

    found = plan(tmp_path, CUDA, backend="cuda", only=["*scale*"])

    names = sorted(path.name for path, _ in found.objects.values())
    assert names == ["scale.cpp", "scale.cu", "torch_binding.cpp"]
    assert found.left_out == ["all: 1 of 3 files, by --only", "ampere: for 8.0 only"]
    assert found.variant == "torch211-cxx11-cu130-x86_64-linux"
    assert found.flags["all nvcc"] == ["-gencode=arch=compute_90a,code=sm_90a"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (CUDA, {"backend": "cpu"}, "'cpu' .* cuda, metal.* --backend cuda"),
        (BUILD, {"backend": "cpu", "only": ["*.cu"]}, "2 of 2 files, by --only"),
        (CUDA, {"backend": "metal"}, "'metal'"),
        (CUDA, {"backend": "cuda"}, r"scale\.cu: is missing"),
        (CUDA.replace('"torch"]', '"cutlass_4_0"]'), {"backend": "cuda"}, r"CUTLASS 4\.0\. .*v4\.0\.0"),
        (CUDA.replace('"torch"]', '"sycl_tla"]'), {"backend": "cuda"}, "'sycl_tla'"),
        (CUDA.replace("12.8", "13.1"), {"backend": "cuda"}, r"CUDA 13\.0\. .*CUDA 13\.1"),
        (CUDA.replace('"scale"', '"scale"\nedition = 9'), {}, "edition 9"),
        (CUDA.replace("[torch]", "[tvm-ffi]"), {}, r"has no \[torch\]"),
        ("[general", {}, "build.toml: is not valid"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(
    tmp_path: Path, text: str, options: Any, message: str
) -> None:
    with pytest.raises(KbtError, match=message):
        plan(tmp_path, text, **options)


@pytest.mark.parametrize(
    ("different", "message"),
    [
        ({"cxx": ""}, r"no C\+\+ compiler was found"),
        ({"ninja": ""}, "ninja was not found"),
        ({"nvcc": ""}, "no CUDA compiler was found for torch's CUDA 13.0"),
        ({"cuda": ""}, "built without CUDA"),
        ({"cuda": "99.0", "nvcc": sys.executable}, "does not match torch's CUDA 99.0"),
    ],
)
def test_a_missing_compiler_is_named(different: dict[str, str], message: str) -> None:
    with pytest.raises(KbtError, match=message):
        compilers(**different).check("scale", "cuda", CudaGeneral())


@pytest.mark.parametrize("package", ["torch", "kernels"])
def test_a_missing_package_is_named_before_anything_is_compiled(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(KbtError, match=f"the package {package} is not installed. Install "):
        hub.build([str(make_source(tmp_path, build=NOARCH))], output=tmp_path / "builds")

    assert not (tmp_path / "builds").exists()


def test_the_command_builds_into_the_projects_folder(place: Place) -> None:
    folder = make_source(place.folder / "source", build=NOARCH)
    command = "hub", "build", str(folder), "--backend", "cpu", "-j", "1"

    done = run_kbt(place.folder, *command)
    mistake = run_kbt(place.folder, *command, "no-such")
    ignored = run_kbt(place.folder, *command, "--arch", "9.0")

    assert (done.returncode, place.load(SCALE).value) == (0, 2)
    assert mistake.returncode == 2
    assert "no-such/build.toml: cannot be read" in mistake.stderr
    assert "--arch 9.0" in ignored.stderr
