"""Runs each command in a fork of itself, as ``python -m kernels_bench_tools`` would, without its imports.

A line of standard input is a command: its folder, arguments, variables, the files for its output and its errors, and the
seconds after which it is killed. The answer is its exit code.
"""

import gc
import json
import os
import signal
import sys

from kernels_bench_tools.cli import app, main

app.find_app([])  # imports all verbs
gc.freeze()
for line in sys.stdin:
    folder, arguments, variables, outputs, seconds = json.loads(line)
    process = os.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv, sys.path[0] = ["kbt", *arguments], folder
        for number, name in enumerate((os.devnull, *outputs)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        signal.alarm(seconds)
        main()
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
