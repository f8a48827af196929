from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.notebooks.survey import survey_project


def graph(workspace):
    survey = survey_project(workspace.project)
    assert survey.problems() == []
    return survey.graph


def test_cells_are_ordered_by_needs_and_then_by_name(workspace):
    workspace.cell("op/results/c.md", "1", "id=combine needs=../impls/*.md:benchmark")
    workspace.cell("op/impls/b.md", "1", "id=benchmark")
    workspace.cell("op/impls/a.md", "1", "id=benchmark needs=../../z.md:first")
    workspace.write("z.md", "```python id=second\n1\n```\n```python id=first\n1\n```\n")

    assert [str(name) for name in graph(workspace).nodes] == [
        "op/impls/b.md:benchmark",
        "z.md:second",
        "z.md:first",
        "op/impls/a.md:benchmark",
        "op/results/c.md:combine",
    ]


def test_a_glob_skips_notebooks_without_the_cell_and_its_own(workspace):
    workspace.cell("a.md", "1", "id=benchmark")
    workspace.write("b.md", "```python id=x\n1\n```\n# ```python id=no\n1\n# ```\n\n```python id=y\n1\n```\n")
    workspace.cell("c.md", "1", "id=benchmark needs=./*.md:benchmark,./b.md")
    workspace.cell("d.md", "1", "id=d needs=./c.md:benchmark")
    found = graph(workspace)

    node, b = found.nodes[CellName("c.md", "benchmark")], [CellName("b.md", "x"), CellName("b.md", "y")]
    assert node.foreign == [CellName("a.md", "benchmark"), *b]
    assert node.whole == {"b.md": b}
    assert found.closure([node.name]) == [CellName("a.md", "benchmark"), *b, node.name]


def test_a_glob_of_files_skips_loops_hidden_ones_and_names_that_are_no_text(workspace):
    (workspace.root / "loop.jsonl").symlink_to("loop.jsonl")
    for name in ("text.jsonl", "\udcff.jsonl", "gpu/.hidden/a.jsonl", "gpu/h200/a.jsonl"):  # the byte 0xff
        workspace.write(name, "")
    workspace.cell("a.md", "1", "id=a needs=./*.jsonl,./gpu/*/*.jsonl,./nothing/*.jsonl")
    workspace.cell("b.md", "1", f"id=b needs=./{'b' * 5000}.csv")
    workspace.cell("c.md", "1", "id=c script=loop.jsonl")
    survey = survey_project(workspace.project)

    files = survey.graph.nodes[CellName("a.md", "a")].files
    assert [workspace.project.relative(path) for path in files] == ["gpu/h200/a.jsonl", "text.jsonl"]
    assert ["names no file" in str(one) or "cannot be read" in str(one) for one in survey.problems()] == [
        True,
        True,
    ]


def test_the_name_of_a_folder_is_no_glob(workspace):
    workspace.cell("op[1]/impls/a.md", "1", "id=benchmark")
    workspace.cell("op1/impls/a.md", "1", "id=benchmark")
    for folder in ("op[1]", "op1"):
        workspace.write(f"{folder}/results/records/gpu/a.jsonl", "")
        workspace.write(f"{folder}/results/a.csv", "")
    needs = "../impls/*.md:benchmark,./records/*/*.jsonl,./a.csv"
    workspace.cell("op[1]/results/c.md", "1", f"id=c needs={needs}")

    node = graph(workspace).nodes[CellName("op[1]/results/c.md", "c")]

    results = workspace.root / "op[1]/results"
    assert node.foreign == [CellName("op[1]/impls/a.md", "benchmark")]
    assert node.files == [results / "a.csv", results / "records/gpu/a.jsonl"]
