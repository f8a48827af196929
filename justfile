# The verbs of development. `uv run --group dev just` lists them.

# pip's wheel folder serves uv, too: a machine that has a CPU build of torch there need not fetch the CUDA one.
export UV_FIND_LINKS := env("UV_FIND_LINKS", env("PIP_FIND_LINKS", ""))

run := "uv run --all-groups"

# List the recipes.
default:
    @just --list

# Everything that CI runs: lint, types, tests, browser tests, a build of the whole report.
check: lint types test report

# Style and formatting.
lint:
    {{run}} ruff check .
    {{run}} ruff format --check .

# Static types.
types:
    {{run}} mypy

# All tests that need no GPU, three at a time, since they wait for processes of their own; `just test -k name` runs some.
test *arguments:
    {{run}} pytest -n 3 --dist worksteal {{arguments}}

# Only the tests that drive a browser.
browser *arguments:
    {{run}} pytest -m browser {{arguments}}

# Check the notebooks, then build the whole report on this machine, with the smallest workloads; `kbt build` measures more.
report:
    {{run}} kbt check
    {{run}} kbt build --workloads smoke

# Write the JSON Schemas that docs/ publishes.
schema:
    {{run}} python -m kernels_bench_tools.schema.json_schema docs

# Format and mend what can be mended.
fix:
    {{run}} ruff check --fix .
    {{run}} ruff format .
