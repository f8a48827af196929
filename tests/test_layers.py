"""Each layer imports only the layers below it. ``python tests/test_layers.py`` prints the table of CONTRIBUTING.md."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "kernels_bench_tools"
NAME = "kernels_bench_tools"

LAYERS = {
    "measure": "MEASURE",
    "operators": "MEASURE",
    "hub": "MEASURE",
    "selfcheck": "MEASURE",
    "models": "MEASURE",
    "measure.judge.messages": "FACTS",
    "measure.judge.runner": "RUN",
    "models.config": "FACTS",
    "results": "RESULTS",
    "chart": "CHART",
    "notebooks": "RUN",
    "run": "RUN",
    "cluster": "RUN",
    "report": "PUBLISH",
    "report.paths": "FACTS",
    "serve": "CLI",
    "cli": "CLI",
    "__main__": "CLI",
    "__init__": "FACE",
}
MAY_IMPORT = {
    "FACTS": {"FACTS"},
    "MEASURE": {"FACTS", "MEASURE"},
    "RESULTS": {"FACTS", "RESULTS", "CHART"},
    "CHART": {"FACTS", "RESULTS", "CHART"},
    "RUN": {"FACTS", "RUN"},
    "PUBLISH": {"FACTS", "RESULTS", "CHART", "PUBLISH"},
    # The public face loads its names lazily; importing it must stay as light as the facts.
    "FACE": {"FACTS"},
    "CLI": {"FACTS", "RUN", "RESULTS", "CHART", "PUBLISH", "CLI", "FACE"},
}
# Packages that only the command needs. Cells have them, too, but a cell that pins others must be able to measure.
COMMAND = {
    "filelock",
    "jinja2",
    "latex2mathml",
    "markdown_it",
    "mdit_py_plugins",
    "nh3",
    "psutil",
    "pygments",
}
COMMAND |= {"rich", "typer", "uv", "uvnote", "yaml"}
FORBIDDEN = {
    "FACTS": {"torch", "triton", "matplotlib", "kernels"} | COMMAND,
    "MEASURE": {"matplotlib"} | COMMAND,
    "RESULTS": {"torch", "triton", "kernels", "matplotlib"} | COMMAND,
    "CHART": {"torch", "triton", "kernels"} | COMMAND,
    "RUN": {"torch", "triton", "matplotlib", "jinja2", "kernels"},
    "PUBLISH": {"torch", "triton", "matplotlib", "uvnote", "kernels"},
    "FACE": {"torch", "triton", "matplotlib", "kernels"} | COMMAND,
    "CLI": {"torch", "triton", "kernels"},
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layers_table() -> list[str]:
    """Return the lines of the table of layers in CONTRIBUTING.md."""
    lines = ["| layer | modules | imports | never imports |", "|---|---|---|---|"]
    others = {module_parts(path)[0]: "FACTS" for path in MODULES if module_parts(path)}
    for layer, imported in MAY_IMPORT.items():
        paths = [name.replace(".", "/") for name, of in (others | LAYERS).items() if of == layer]
        modules = [f"`{path}/`" if (PACKAGE / path).is_dir() else f"`{path}.py`" for path in sorted(paths)]
        never = [f"`{name}`" for name in sorted(FORBIDDEN[layer] - COMMAND)]
        if FORBIDDEN[layer] >= COMMAND:
            never.append("packages of the command")
        cells = map(", ".join, (modules, sorted(imported), never))
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    return lines


def layer_of(parts: tuple[str, ...]) -> str:
    top = parts[0] if parts else "__init__"
    return LAYERS.get(".".join(parts), LAYERS.get(top, "FACTS"))


def module_parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts


def imported_names(tree: ast.Module) -> set[str]:
    """Return every module imported anywhere in the file, except under ``TYPE_CHECKING``."""
    checking = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in checking:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            module = node.module or ""
            # `from package import module` imports the module, too.
            inner = PACKAGE.parent / module.replace(".", "/")
            names.update(
                f"{module}.{alias.name}"
                if (inner / alias.name).is_dir() or (inner / f"{alias.name}.py").is_file()
                else module
                for alias in node.names
            )
    return names


def test_a_module_imports_only_what_its_layer_may() -> None:
    wrong = []
    for path in MODULES:
        parts = module_parts(path)
        layer = layer_of(parts)
        for name in sorted(imported_names(ast.parse(path.read_text(encoding="utf-8")))):
            top, *rest = name.split(".")
            if top == NAME and layer_of(tuple(rest)) not in MAY_IMPORT[layer]:
                wrong.append(f"{'.'.join(parts)} ({layer}) imports {name} ({layer_of(tuple(rest))})")
            elif top in FORBIDDEN[layer]:
                wrong.append(f"{'.'.join(parts)} ({layer}) imports {name}")
    assert not wrong, "\n".join(wrong)


def test_all_layers_except_measure_import_without_torch() -> None:
    names = [
        ".".join((NAME, *module_parts(path)))
        for path in MODULES
        if layer_of(module_parts(path)) not in {"MEASURE"} and path.name not in {"__init__.py", "__main__.py"}
    ]
    program = "import sys, importlib\nsys.modules['torch'] = sys.modules['triton'] = None\n" + "\n".join(
        f"importlib.import_module({name!r})" for name in names
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_table_of_layers_in_contributing_is_the_one_that_is_enforced() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert "\n".join(layers_table()) in text, "python tests/test_layers.py prints it"


if __name__ == "__main__":
    print(*layers_table(), sep="\n")
