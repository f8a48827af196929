"""Which of the user's variables a cell is given: those that programs need to run, and no credentials.

What a cell prints is published, so it is given nothing that must not be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_NAMES = frozenset(
    (
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TERM",
        "USER",
        "LOGNAME",
        "SHELL",
        "COLUMNS",
        "NO_COLOR",
        "CI",
        "SOURCE_DATE_EPOCH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LIBRARY_PATH",
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "PKG_CONFIG_PATH",
        "DYLD_LIBRARY_PATH",
        "GLIBC_TUNABLES",
        "CC",
        "CXX",
        "NVCC_PREPEND_FLAGS",
        "NVCC_APPEND_FLAGS",
        "MAX_JOBS",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NIX_SSL_CERT_FILE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "USE_HUB_KERNELS",
        "LOCAL_KERNELS",
        "KERNELS_CACHE",
        "HUGGINGFACE_HUB_CACHE",
    )
)
_CALCULATING = (
    "CUDA_",
    "NVIDIA_",
    "CUBLAS_",
    "CUDNN_",
    "CUTLASS_",
    "CUTE_",
    "NVTE_",
    "NVPL_",
    "ROCR_",
    "HIP_",
    "HSA_",
    "GPU_",
    "MIOPEN_",
    "ZE_",
    "SYCL_",
    "ONEAPI_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "INDUCTOR_",
    "FLASH_ATTENTION_",
    "XFORMERS_",
    "LIGER_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "GOMP_",
    "KMP_",
    "NUMEXPR_",
    "VECLIB_",
    "MALLOC_",
    "ATEN_",
)
"""What the names begin with of variables that devices, their libraries and thread pools read."""
_PREFIXES = (
    *_CALCULATING,
    "LC_",
    "NCCL_",
    "ROCM_",
    "RCCL_",
    "KINETO_",
    "PYTHON",
    "UV_",
    "PIP_",
    "HF_",
    "KERNELS_",
    "KBT_",
    "UVNOTE_",
)
_CREDENTIAL = re.compile(
    r"(?:^|_)(?:TOKEN|(?:API|ACCESS|AUTH|PRIVATE|SSH|AWS)?_?KEY(?:ID)?|SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE"
    r"|CREDENTIAL|AUTH|AUTHORIZATION|COOKIE|PAT|USERNAME|NETRC)S?(?:_|$)|TOKEN$|SECRET$|PASSWORD$|APIKEY$",
    re.IGNORECASE,
)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]+@")

_NUMBERS = (
    *_CALCULATING,
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "NVCC_",
    "PYTHONHASHSEED",
    "PYTHONMALLOC",
    "PYTHONOPTIMIZE",
    "PYTHONGIL",
    "PYTHON_JIT",
    "LOCAL_KERNELS",
)
_NO_NUMBERS = re.compile(
    r".*_(HOME|ROOT|DIR|CACHE|CACHE_PATH|PATH|VERSION|LOGS|VISIBLE_DEVICES|DEVICE_ORDER)|NVIDIA_(REQUIRE|DRIVER)_.*"
)
"""Of ``_NUMBERS``: which card, which the key has; where files are; what is printed."""


def allowed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the user's that every cell is given."""
    return {name: value for name, value in environ.items() if _is_allowed(name, value)}


def passed_variables(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the variables that the user has asked to be passed on, as far as they are set."""
    return {name: environ[name] for name in names if name in environ}


def number_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a cell is given and that can change what it measures, by name.

    Names of folders are none of them: they differ between machines on which the numbers do not. Nor is the number of
    the card: the cell's key has the device, and another card of the same kind is the same to it.
    """
    return {
        name: value
        for name, value in sorted(allowed_variables(environ).items())
        if name.startswith(_NUMBERS) and not _NO_NUMBERS.fullmatch(name) and value
    }


def _is_allowed(name: str, value: str) -> bool:
    known = name in _NAMES or name.upper() in _NAMES or name.startswith(_PREFIXES)
    return known and not _CREDENTIAL.search(name) and not _URL_WITH_PASSWORD.search(value)
