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


def test_a_glob_skips_notebooks_without_the_cell_and_its_own_notebook(workspace):
    workspace.cell("a.md", "1", "id=benchmark")
    workspace.cell("b.md", "1", "id=other")
    workspace.cell("c.md", "1", "id=benchmark needs=./*.md:benchmark")

    assert graph(workspace).nodes[CellName("c.md", "benchmark")].foreign == [CellName("a.md", "benchmark")]


def test_a_need_without_a_cell_is_the_whole_notebook(workspace):
    workspace.write("a.md", "```python id=x\n1\n```\n# ```python id=no\n1\n# ```\n\n```python id=y\n1\n```\n")
    workspace.cell("b.md", "1", "id=b needs=./a.md")

    node = graph(workspace).nodes[CellName("b.md", "b")]

    assert node.foreign == [CellName("a.md", "x"), CellName("a.md", "y")]
    assert node.whole == {"a.md": node.foreign}


def test_globs_skip_files_whose_names_are_no_text(workspace):
    workspace.write("text.jsonl", "")
    workspace.write("\udcff.jsonl", "")  # the byte 0xff
    workspace.cell("a.md", "1", "id=a needs=./*.jsonl")

    assert graph(workspace).nodes[CellName("a.md", "a")].files == [workspace.root / "text.jsonl"]


def test_loops_of_links_and_names_that_are_too_long_are_no_files(workspace):
    (workspace.root / "loop.jsonl").symlink_to("loop.jsonl")
    workspace.cell("a.md", "1", "id=a needs=./*.jsonl")
    workspace.cell("b.md", "1", f"id=b needs=./{'b' * 5000}.csv")
    workspace.cell("c.md", "1", "id=c script=loop.jsonl")

    survey = survey_project(workspace.project)

    assert survey.graph.nodes[CellName("a.md", "a")].files == []
    assert ["names no file" in str(one) or "cannot be read" in str(one) for one in survey.problems()] == [
        True
    ] * 2


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


def test_globs_of_data_files_may_match_nothing(workspace):
    workspace.write("op/results/records/gpu/a.jsonl", "")
    workspace.write("op/results/records/.hidden/a.jsonl", "")
    workspace.cell("op/results/c.md", "1", "id=c needs=./records/*/*.jsonl,./nothing/*.jsonl")

    node = graph(workspace).nodes[CellName("op/results/c.md", "c")]

    assert node.files == [workspace.root / "op/results/records/gpu/a.jsonl"]


def test_the_closure_holds_a_cell_and_what_it_needs(workspace):
    text = "```python id={0} needs={1}\n1\n```\n"
    workspace.write("n.md", "```python id=a\n1\n```\n" + text.format("b", "a") + text.format("c", "b"))

    assert [name.cell for name in graph(workspace).closure([CellName("n.md", "b")])] == ["a", "b"]
