"""Files that are written atomically."""

import errno
from pathlib import Path

import pytest

from kernels_bench_tools.file_io import write_atomically


def test_on_a_read_only_file_system_the_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    # As on such a file system; a real one cannot be mounted here.
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)

    with pytest.raises(OSError, match="Read-only") as caught:
        write_atomically(tmp_path / "notebook.md", b"")

    assert caught.value.filename == str(tmp_path / "notebook.md")
