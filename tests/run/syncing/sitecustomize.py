"""Write down what each process has synced: of files their size and time, of folders the names in them."""

import os
import stat
from pathlib import Path

_fsync = os.fsync


def fsync(number: int) -> None:
    _fsync(number)
    if "KBT_TEST_SYNCED" not in os.environ:
        return
    status = os.fstat(number)
    lines = [f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"]
    if stat.S_ISDIR(status.st_mode):
        with os.scandir(number) as entries:
            lines = [f"{status.st_ino} {entry.name} {entry.inode()}" for entry in entries]
    with Path(os.environ["KBT_TEST_SYNCED"]).open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


os.fsync = fsync
