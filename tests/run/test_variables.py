"""Which of the user's environment variables and settings reach a cell."""

import json
from pathlib import Path

import pytest

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.run.environment.variables import allowed_variables, number_variables, user_cache
from kernels_bench_tools.text.words import words

CREDENTIALS = words("""
    HF_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN GITHUB_PAT AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN OPENAI_API_KEY
    WANDB_API_KEY PIP_PASSWORD UV_PUBLISH_TOKEN UV_INDEX_PRIVATE_PASSWORD UV_INDEX_PRIVATE_USERNAME KBT_SECRET
    TORCH_AUTH PYTHON_KEYRING_PASSWORD MYAPIKEY SSH_AUTH_SOCK NETRC XDG_CONFIG_HOME GIT_CONFIG_GLOBAL MATPLOTLIBRC
    SOME_THING_OF_MINE HF_XET_JWT KBT_DB_PWD UV_KEYRING_PW MYSQL_PWD KBT_SSHPASS KBT_SLACK_WEBHOOK KBT_DSN HF_CREDS
    UV_BEARER HF_SAS PIP_HEADERS KBT_SESSION HF_BASIC UV_INDEX_SIGNATURE KBT_CONNECTION_STRING HF_BEARER_V2 CUDA_LOGIN
""")
PASSED = words("""
    CUDA_VISIBLE_DEVICES CUDA_HOME LD_LIBRARY_PATH NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS PYTORCH_CUDA_ALLOC_CONF
    TORCH_LOGS TRITON_CACHE_DIR HF_HUB_OFFLINE HF_ENDPOINT USE_HUB_KERNELS LOCAL_KERNELS KBT_KERNELS_LOCK LC_ALL TZ
    https_proxy NO_PROXY CI UV_OFFLINE
""")
PRINT = "import os, json; print(json.dumps(dict(os.environ)))"


def environment_of(workspace) -> dict[str, str]:
    return json.loads(workspace.text(workspace.result("n.md").stdout))


PROXIES = words("""
    user:secret@host:3128 token@host:3128 //user:secret@host http://user:sec/ret@host:3128 user:sec@ret@host
    socks5h:user:secret@host
""")


ADDRESSES = [
    *("me:secret@index.example/simple", "https://a.example me:secret@index.example"),
    *("https://index.example/secret/simple", "https://index.example/a?token=secret", "s3://k:secret@b"),
]
PRIVATE_INDEXES = words(
    "https://h/2Hx1bQ-secret/me/ https://h/simple,https://h/t/secret/me https://h/simple/?a=secret https://h/whl/secret"
)
PUBLIC_INDEXES = words(
    "/w@2 file:///a/b https://h a=http://h:3141/simple/,https://h/pypi/simple https://download.pytorch.org/whl/test/cpu"
)


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (words("HTTPS_PROXY http_proxy ALL_PROXY PIP_PROXY NO_PROXY"), PROXIES),
        (words("PIP_FIND_LINKS UV_INDEX HF_ENDPOINT PIP_EXTRA_INDEX_URL"), ADDRESSES),
        (words("PIP_FIND_LINKS UV_INDEX PIP_EXTRA_INDEX_URL"), PRIVATE_INDEXES),
    ],
)
def test_a_proxy_or_an_address_with_a_password_is_not_passed_on(names, values):
    assert allowed_variables({"HF_EXTRA": "Bearer abc", "UV_EXTRA": "Authorization: Basic abc"}) == {}
    for name in names:
        assert [value for value in values if allowed_variables({name: value})] == []
    assert [value for value in PUBLIC_INDEXES if not allowed_variables({"UV_INDEX": value})] == []


@pytest.mark.parametrize("environment", ["current", "uv"])
def test_a_cell_gets_what_programs_need_and_no_credential(workspace, monkeypatch, environment):
    monkeypatch.setenv("UV_OFFLINE", "1")
    for name in [*CREDENTIALS, *PASSED]:
        if name not in {"LD_LIBRARY_PATH", "LC_ALL", "KBT_KERNELS_LOCK"}:
            monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://me:password@index.example/simple")
    monkeypatch.setenv("HTTP_PROXY", "http://me:password@proxy.example")
    workspace.cell("n.md", PRINT)
    workspace.build(environment=environment)

    seen = environment_of(workspace)

    assert not set(CREDENTIALS) & set(seen)
    assert "password" not in json.dumps(seen)
    assert {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "https_proxy", "CI"} <= set(seen)


def test_variables_that_programs_need_are_allowed():
    assert allowed_variables(dict.fromkeys(PASSED, "1")) == dict.fromkeys(PASSED, "1")


def test_pass_env_passes_a_variable_and_runs_no_cell_again(workspace, monkeypatch):
    for name, value in {"HF_TOKEN": "hf_123", "OTHER_TOKEN": "456", "PLAIN": "7"}.items():
        monkeypatch.setenv(name, value)
    workspace.write("pyproject.toml", "[tool.kbt]\npass_env = ['HF_TOKEN', 'OTHER_TOKEN', 'PLAIN']\n")
    workspace.cell("n.md", PRINT)
    told = workspace.build(pass_env=("HF_TOKEN",))
    seen = environment_of(workspace)

    # A repository cannot ask for credentials.
    assert (seen["HF_TOKEN"], seen.get("OTHER_TOKEN"), seen["PLAIN"]) == ("hf_123", None, "7")
    assert [
        "pass_env: OTHER_TOKEN may contain credentials and will not be passed" in note for note in told.notes
    ] == [True]
    assert workspace.build().started == []


def test_a_cell_does_not_see_the_users_settings_files(workspace, tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / ".config" / "matplotlib").mkdir(parents=True)
    (home / ".netrc").write_text("machine example.org login me password secret\n")
    (home / ".gitconfig").write_text("[user]\nname = Somebody\n")
    (home / ".config" / "matplotlib" / "matplotlibrc").write_text("lines.linewidth: 42\n")
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text("hf_secret")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME")
    code = """
import netrc, pathlib, subprocess
print(pathlib.Path("~/.netrc").expanduser().exists())
print(subprocess.run(["git", "config", "--global", "user.name"], capture_output=True).stdout)
import matplotlib; print(matplotlib.rcParams["lines.linewidth"])
import huggingface_hub; print(huggingface_hub.get_token())
"""
    run = workspace.run_cell(code)

    assert workspace.text(run.stdout).splitlines() == ["False", "b''", "1.5", "None"]


def test_a_cell_prints_and_writes_utf_8_whatever_the_user_has(workspace, monkeypatch):
    for name, value in {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "POSIX"}.items():
        monkeypatch.setenv(name, value)
    cell = workspace.run_cell("print('±')\nopen('x.txt', 'w').write('µ')", "id=a outputs=x.txt")
    assert (cell.reason, workspace.text(cell.stdout)) == ("", "±\n")
    assert (workspace.root / cell.artifacts["x.txt"]).read_bytes() == "µ".encode()


def test_variables_that_change_numbers_are_distinguished_from_folders():
    given = """
        OMP_NUM_THREADS=2 CUDA_LAUNCH_BLOCKING=1 CUDA_HOME=/usr/local/cuda CUDA_VISIBLE_DEVICES=1 NVIDIA_DRIVER_CAPABILITIES=all
        TORCHINDUCTOR_MAX_AUTOTUNE=1 TORCH_LOGS=dynamo TRITON_CACHE_DIR=/tmp/t TORCH_TOKEN=secret PATH=/bin MKL_NUM_THREADS=
    """

    assert number_variables(dict(one.split("=") for one in words(given))) == {
        "CUDA_LAUNCH_BLOCKING": "1",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    }


def test_without_a_home_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(KbtError, match="HOME: is not set"):
        user_cache()
