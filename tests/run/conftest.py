"""Fixtures of the tests in this folder."""

import subprocess

import pytest
from workspace import uv_cache, workspace

__all__ = ["uv_cache", "workspace"]


@pytest.fixture
def small_disk(tmp_path):
    """Make a disk of so many kilobytes, and let it grow."""
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(kilobytes, *options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={kilobytes}k"]), "tmpfs"]
        if subprocess.run([*command, str(folder)], capture_output=True).returncode:
            pytest.skip("a small disk can be mounted by root only")
        return folder

    yield mount
    while folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=True)
