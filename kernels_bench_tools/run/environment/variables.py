"""Environment variables of cells and of uv.

Cells get the variables that programs need, and no credentials: what a cell prints is published.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.own_folders import make_folder
from kernels_bench_tools.own_process import CREDENTIAL_NAME, is_credential
from kernels_bench_tools.text.hiding import hide_values
from kernels_bench_tools.text.words import words

_NAMES = words("""
    PATH LANG LANGUAGE TZ TMPDIR TERM USER LOGNAME SHELL COLUMNS NO_COLOR CI SOURCE_DATE_EPOCH
    LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH PKG_CONFIG_PATH
    DYLD_LIBRARY_PATH GLIBC_TUNABLES CC CXX NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS MAX_JOBS
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NIX_SSL_CERT_FILE
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY
    USE_HUB_KERNELS LOCAL_KERNELS KERNELS_CACHE HUGGINGFACE_HUB_CACHE
""")
_COMPUTE_PREFIXES = words("""
    CUDA_ NVIDIA_ CUBLAS_ CUDNN_ CUTLASS_ CUTE_ NVTE_ NVPL_ ROCR_ HIP_ HSA_ GPU_ MIOPEN_ ZE_ SYCL_ ONEAPI_
    TORCH PYTORCH_ ATEN_ TRITON_ INDUCTOR_ FLASH_ATTENTION_ XFORMERS_ LIGER_
    OMP_ MKL_ OPENBLAS_ GOTO_ BLIS_ GOMP_ KMP_ NUMEXPR_ VECLIB_ MALLOC_
""")
"""Prefixes of variables that devices, their libraries, frameworks and thread pools read."""
_PREFIXES = _COMPUTE_PREFIXES + words("""
    LC_ NCCL_ ROCM_ RCCL_ KINETO_ PYTHON UV_ PIP_ HF_ KERNELS_ KBT_ UVNOTE_
""")
_RESULT_PREFIXES = _COMPUTE_PREFIXES + words("""
    LD_PRELOAD GLIBC_TUNABLES NVCC_ PYTHONHASHSEED PYTHONMALLOC PYTHONOPTIMIZE PYTHONGIL PYTHON_JIT LOCAL_KERNELS
""")
"""Prefixes of variables that are part of the keys of cells that measure."""
_NO_RESULT = re.compile(
    r".*_(HOME|ROOT|DIR|CACHE|CACHE_PATH|PATH|VERSION|LOGS|VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_ORDINAL|AFFINITY_MASK)|NVIDIA_(REQUIRE|DRIVER)_.*"
)
"""Exceptions to ``_RESULT_PREFIXES``: the number of the GPU, folders, and what is printed."""
_OF_INDEXES = re.compile(r"UV_(?!PUBLISH_).*|(XDG|SSL|DBUS)_.*|(?i:.*_PROXY)|HOME|NETRC")
"""What uv reads to reach the user's indexes, with credentials: also a keyring and ``~/.netrc``."""
_PRIVATE_INDEX = re.compile(
    r"(?s)(?:UV|PIP)_.*(?<!file)://(?!(?:[^/?#\s,]*(?:/(?:pypi/)?simple)?/?|download\.pytorch\.org/whl/[^?#\s,]*)(?:[\s,]|$))"
)
"""An index with another path than public ones, which may be a secret in any form: cells rarely need an index."""


def allowed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables that every cell is given."""
    known = [name for name in environ if name.upper() in _NAMES or name.startswith(_PREFIXES)]
    return {
        name: value
        for name in known
        if not (is_credential(name, value := environ[name]) or _PRIVATE_INDEX.match(f"{name}={value}"))
    }


def number_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the allowed variables that can change measured numbers, for the keys of cells.

    Folders differ between machines without effect, and the key has the device instead of the number of the GPU.
    """
    return {
        name: value
        for name, value in sorted(allowed_variables(environ).items())
        if name.startswith(_RESULT_PREFIXES) and not _NO_RESULT.fullmatch(name) and value
    }


def only_gpu(gpu: str) -> dict[str, str]:
    """Return the variable that hides all other GPUs; none for the first visible one."""
    return {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}


def forwarded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in the keys of cells: on a worker of a cluster they are the client's, also where unset."""
    own = {name: environ[name] for name in ("USE_HUB_KERNELS", "UVNOTE_PLATFORM") if name in environ}
    return number_variables(environ) | own


def user_cache() -> Path:
    return _cache_home(os.environ) / "kbt"


def cache_folder(*names: str) -> Path:
    """Make a folder in the user's cache; what a cell has put in its place is removed."""
    user_cache().mkdir(parents=True, exist_ok=True)
    make_folder(user_cache().joinpath(*names), user_cache(), replace=True)
    return user_cache().joinpath(*names)


def uv_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for uv, and so for what builds packages: those of cells, and those of the user's indexes, also pip's.

    What is private of them is hidden from then on in all that is stored or printed.
    """
    hide_values(value for name, value in environ.items() if _is_private(name, value))
    variables = allowed_variables(environ)
    variables |= {name: value for name, value in environ.items() if _OF_INDEXES.fullmatch(name)}
    for name, older, pip, separator in (
        ("UV_FIND_LINKS", "", "PIP_FIND_LINKS", ","),
        ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", " "),
        ("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL", " "),
    ):
        if not environ.get(name) and not environ.get(older) and (listed := environ.get(pip, "").split()):
            variables[name] = separator.join(listed)
    variables.setdefault("UV_NO_PROGRESS", "1")
    if variables.get("UV_LINK_MODE") == "symlink":  # a file behind a link changes without the link
        del variables["UV_LINK_MODE"]
    return variables


def _is_private(name: str, value: str) -> bool:
    """Return whether a variable for uv has a password in it, or an index whose path may be one."""
    if name.upper().endswith("_PROXY"):
        return "@" in value
    named = CREDENTIAL_NAME.match(name) and not (name.endswith("USERNAME") and value.isalpha())
    return bool(_PRIVATE_INDEX.match(f"{name}={value}") or (named and name.startswith(("UV_", "PIP_"))))


def cell_variables(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the variables of every cell: allowed ones, an empty home, and the user's caches.

    With an empty home, neither settings of this machine nor passwords in ``~/.netrc`` reach a measurement.
    """
    variables = allowed_variables(environ) | shared_folders(environ)
    # Not the user's own folder: a matplotlibrc there would change the figures.
    variables["MPLCONFIGDIR"] = str(user_cache() / "matplotlib")
    variables["HOME"] = str(home)
    # The default is beside the hub's cache, where the user's token is.
    variables["HF_TOKEN_PATH"] = str(home / "token")
    # Bytecode is compared with its source where Python puts it by default.
    variables.pop("PYTHONPYCACHEPREFIX", None)
    # What a cell prints and writes is UTF-8 in every locale: a character of a table is no failure of a kernel.
    variables.pop("PYTHONIOENCODING", None)
    variables["PYTHONUTF8"] = "1"
    variables["PYTHONUNBUFFERED"] = "1"
    variables["PYTHONNOUSERSITE"] = "1"
    # A crash then prints its line.
    variables.setdefault("PYTHONFAULTHANDLER", "1")
    return variables


def shared_folders(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the user's caches that cells and uv share."""
    cache, user = _cache_home(environ), home_folder(environ)
    data = Path(environ.get("XDG_DATA_HOME") or user / ".local" / "share")
    shared = {
        "UV_CACHE_DIR": cache / "uv",
        "UV_PYTHON_INSTALL_DIR": data / "uv" / "python",
        "HF_HOME": cache / "huggingface",
    }
    return {name: environ.get(name) or str(path) for name, path in shared.items()}


COMPILED = "compiled"
"""Folder in the user's cache for the compiled kernels of cells."""


def compiler_caches(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables of the caches of compiled kernels: ``folder`` of one cell, unless the user sets them.

    What a compiler finds there it executes, so cells have none in common.
    """
    names = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return {variable: environ.get(variable) or str(folder / name) for variable, name in names.items()}


def home_folder(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:  # in a container, a user may be a number only
        raise KbtError("HOME", "is not set", "A writable folder", "Set HOME to one") from None


def _cache_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or home_folder(environ) / ".cache")
