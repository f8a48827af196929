"""Notebooks are uvnote's, but uvnote (0.3) does not do what its format promises in these cases.

Each test is one case where building the notebook with uvnote loses data, hides a failure or depends on chance. They
run whole builds; how the parts work is tested beside them.
"""

from pathlib import Path

from kernels_bench_tools.report.site import publish


def site(workspace, *targets, **options):
    """Build and publish; return a function that reads a file of the site."""
    workspace.build(*targets, **options)
    publish(workspace.root, workspace.run, workspace.root / "site")
    return lambda path: workspace.text(f"site/{path}")


def output(workspace, notebook, cell="a"):
    return workspace.text(workspace.result(notebook, cell).stdout)


def test_files_written_outside_the_cells_folder_are_removed(workspace, tmp_path):
    code = "from pathlib import Path\nPath('../x.txt').write_text('')\nprint(Path('../x.txt').resolve())"
    workspace.cell("n.md", code)
    workspace.build()

    assert workspace.result("n.md").artifacts == {}
    assert not Path(output(workspace, "n.md").strip()).exists()
    assert not list(workspace.root.rglob("x.txt"))


def test_a_change_reaches_cells_through_a_need_on_a_whole_notebook(workspace):
    read = "import json, os\nfolder = json.load(open(os.environ['UVNOTE_FILE_B']))['a']\n"
    workspace.cell("c.md", "open('v.txt', 'w').write('v1')")
    copy = "import os\ntext = open(os.environ['UVNOTE_FILE_C_A'] + '/v.txt').read()\nopen('v.txt', 'w').write(text)"
    workspace.cell("b.md", copy, "id=a needs=./c.md:a")
    workspace.cell("a.md", read + "print(open(folder + '/v.txt').read())", "id=a needs=./b.md")
    workspace.build()
    assert output(workspace, "a.md") == "v1\n"
    workspace.cell("c.md", "open('v.txt', 'w').write('v2')")
    workspace.build()

    assert output(workspace, "a.md") == "v2\n"


def test_a_notebook_written_by_a_cell_is_not_run(workspace):
    text = "```python id=evil\\nopen('ran.txt', 'w')\\n```\\n"
    workspace.cell("n.md", f"open('report.md', 'w').write({text!r}.replace('\\\\n', chr(10)))")
    site(workspace)
    told = workspace.build()

    assert "report.md" in workspace.result("n.md").artifacts
    assert "evil" in next((workspace.root / "site").rglob("report.md")).read_text()
    assert list(told.finished) == ["n.md:a"]
