# Recipes for development. `uv run --group dev just` lists them.

# uv uses pip's wheel folder, too: with a CPU build of torch in it, the CUDA build is not downloaded.
export UV_FIND_LINKS := env("UV_FIND_LINKS", env("PIP_FIND_LINKS", ""))

# Tests and the report run side by side, and threads of small operations would wait for one another.
export OMP_NUM_THREADS := env("OMP_NUM_THREADS", "1")

run := "uv run --all-groups"

# List the recipes.
default:
    @just --list

# Run what CI runs: lint, types, tests, browser tests, a build of the report.
check: lint types-test-and-report

# The build leaves a core idle most of the time, since it measures one cell after another.
[parallel]
[private]
types-test-and-report: types test quick-report

# Check style and formatting.
lint:
    {{run}} ruff check .
    {{run}} ruff format --check .

# Check static types.
types:
    {{run}} mypy

# Run all tests that need no GPU, four at a time because many wait for processes; `just test -k name` selects some.
test *arguments:
    {{run}} pytest -n 4 --dist worksteal {{arguments}}

# Run only the browser tests.
browser *arguments:
    {{run}} pytest -m browser {{arguments}}

# Check the notebooks, then build the report on this machine with the smallest workloads.
report:
    {{run}} kbt check
    {{run}} kbt build --workloads smoke

# The same with five operators' baselines only, in the environment of `uv run kbt`, without what only tests need. Tests run the others.
quick-report:
    uv run --isolated kbt check
    uv run --isolated kbt build --workloads smoke $(grep -rl "^baseline: true" layer_norm rotary flash_attn causal_conv1d activation)
    ! grep -rq "were not drawn" site/models

# Write the JSON Schemas that docs/ publishes.
schema:
    {{run}} python -m kernels_bench_tools.records.json_schema docs

# Format, and fix what can be fixed automatically.
fix:
    {{run}} ruff check --fix .
    {{run}} ruff format .
