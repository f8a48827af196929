"""Every defect of uvnote that reference/notebooks.md lists (section 3), and the tests that show it absent here.

``DEFECTS`` goes through that section in its order. A test of this file has its name alone, another one has its file.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from kernels_bench_tools.cli import main
from kernels_bench_tools.notebooks.check import check_project
from kernels_bench_tools.report.site import publish

TESTS = Path(__file__).parents[1]


class Defect(NamedTuple):
    """What is true here instead, and where that is shown."""

    fact: str
    shown_by: tuple[str, ...]


DEFECTS = {
    # 3.1 Environment
    "3.1 home is fresh, and so is every cache": Defect(
        "a cell has a home of its own, and the caches of uv, the hub, Triton and Inductor are shared",
        ("run/test_runner.py::test_caches_are_shared_and_home_is_not",),
    ),
    "3.1 cells of one folder share an environment": Defect(
        "a cell imports what its header names and nothing else, whatever cells of its folder have been installed",
        (
            "test_cells_of_one_folder_and_one_id_do_not_share_packages",
            "run/test_environments.py::test_a_cell_has_exactly_what_its_header_asks_for",
            "run/test_environments.py::test_a_package_that_leaves_the_header_leaves_the_environment",
        ),
    ),
    "3.1 no header, no isolation (D31)": Defect(
        "a cell without a header is isolated as well",
        ("run/test_environments.py::test_a_cell_without_a_header_is_isolated",),
    ),
    "3.1 tokens are passed on": Defect(
        "variables that look like credentials do not reach a cell",
        (
            "test_a_token_does_not_reach_a_cell",
            "run/test_variables.py::test_a_cell_gets_what_programs_need_and_no_credential",
        ),
    ),
    "3.1 writing ../x escapes (D12)": Defect(
        "what is written beside a cell's folder is neither kept nor left behind",
        (
            "test_what_is_written_beside_the_cells_folder_is_gone_with_it",
            "run/test_runner.py::test_only_regular_files_of_the_cells_own_folder_are_kept",
        ),
    ),
    "3.1 versions are pinned and recorded nowhere": Defect(
        "a header's date pins the resolution, its absence is said, and what was installed is in the cell's log",
        (
            "notebooks/test_checks.py::test_advice_asks_for_a_date",
            "run/test_environments.py::test_a_cell_has_exactly_what_its_header_asks_for",
        ),
    ),
    "3.1 deps= beside a header (M1)": Defect(
        "is refused with its line before anything runs",
        ("notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",),
    ),
    # 3.2 Cache
    "3.2 failures are served (D2, N3)": Defect(
        "a failure is shown and tried again",
        (
            "run/test_cache.py::test_a_failure_is_kept_for_showing_and_never_served",
            "test_a_cell_that_took_too_long_runs_again",
        ),
    ),
    "3.2 the key lacks the device and the environment (D3)": Defect(
        "another device, environment or platform runs everything that it concerns",
        ("run/test_cache.py::test_another_device_or_environment_runs_everything",),
    ),
    "3.2 the key lacks local sources and data files (D41)": Defect(
        "the content of path sources, of the harness and of data files is part of the key",
        (
            "run/test_cache.py::test_a_source_on_the_disk_counts",
            "run/test_cache.py::test_of_this_package_counts_what_a_cell_of_its_role_may_import",
            "run/test_cache.py::test_data_files_are_inputs",
        ),
    ),
    "3.2 the key lacks outputs= and the id": Defect(
        "an added output runs the cell; a renamed cell and one of equal code have results of their own",
        (
            "run/test_cache.py::test_an_added_output_runs_the_cell",
            "run/test_cache.py::test_cells_of_the_same_code_have_results_of_their_own",
            "test_a_renamed_cell_runs",
        ),
    ),
    "3.2 a rerun contradicts what needs it (D4)": Defect(
        "a rerun whose result is another one reaches its dependents",
        ("run/test_scheduler.py::test_a_result_that_changed_on_a_rerun_reaches_its_dependents",),
    ),
    "3.2 a change two notebooks away is not seen (D29)": Defect(
        "it is, through a notebook that is needed as a whole",
        ("test_a_change_travels_through_a_whole_notebook",),
    ),
    "3.2 a moved checkout runs cells with needs (D5)": Defect(
        "it runs nothing",
        ("run/test_cache.py::test_a_moved_checkout_runs_nothing",),
    ),
    "3.2 one cell's need is in the key of all": Defect(
        "a need added to one cell runs that cell", ("test_a_need_added_to_one_cell_runs_that_cell",)
    ),
    "3.2 damage is served or stops every build (D17)": Defect(
        "a damaged or tampered entry is made again, a damaged memory of the last results is none",
        (
            "run/test_cache.py::test_a_damaged_entry_is_rebuilt_and_said_to_be_damaged",
            "run/test_cache_entries.py::test_every_single_bit_of_every_file_is_guarded",
            "run/test_cache.py::test_a_damaged_memory_of_last_results_is_none",
        ),
    ),
    "3.2 writes are not atomic": Defect(
        "an entry appears whole; what a killed build left unfinished is swept",
        (
            "run/test_cache_entries.py::test_killed_at_any_moment_no_half_entry_is_served_and_no_finished_one_is_lost",
            "run/test_cache.py::test_leftovers_of_killed_builds_are_swept",
        ),
    ),
    "3.2 entries in use are evicted (D38)": Defect(
        "an entry that is a cell's last result stays; sizes are read as written",
        (
            "run/test_pruning.py::test_what_the_report_shows_is_never_removed",
            "run/test_pruning.py::test_pruning_to_nothing_keeps_what_is_shown_and_what_a_session_goes_on_from",
            "run/test_variables.py::test_sizes_are_read",
        ),
    ),
    "3.2 only the current folder's cache is cleaned": Defect(
        "a project has one cache, found from any folder in it",
        ("test_the_cache_is_found_from_any_folder",),
    ),
    # 3.3 Execution
    "3.3 the order is random (D22b)": Defect(
        "cells come after their needs, else in the order of names and text, and run side by side",
        (
            "notebooks/test_graph.py::test_cells_come_after_what_they_need_and_else_in_the_order_of_their_names",
            "run/test_scheduler.py::test_jobs_bound_what_runs_at_once",
            "test_the_order_does_not_depend_on_the_hash_seed",
        ),
    ),
    "3.3 a timeout leaves the cell running (D9)": Defect(
        "everything that it started ends with it, also when the build is interrupted or killed",
        (
            "run/test_runner.py::test_a_timeout_kills_everything_that_the_cell_started",
            "run/test_scheduler.py::test_an_interrupted_build_leaves_no_process_and_keeps_what_ended",
            "run/test_orphans.py::test_nothing_outlives_a_build_that_is_ended",
            "run/test_orphans.py::test_the_next_build_clears_away_what_a_killed_reaper_left",
        ),
    ),
    "3.3 a timeout loses the output (D9)": Defect(
        "what was printed and recorded by then is kept",
        (
            "test_what_was_printed_before_a_timeout_is_kept",
            "run/test_runner.py::test_finished_rows_are_kept_and_the_failure_is_one_more",
        ),
    ),
    "3.3 exit code and signal are lost (D8)": Defect(
        "each end has its status, reason and exit code",
        (
            "run/test_runner.py::test_each_end_has_its_status_and_reason",
            "run/test_deaths.py::test_each_death_is_a_status_with_its_last_words_and_the_next_cell_runs",
        ),
    ),
    "3.3 output is unlimited and held in memory (D10)": Defect(
        "output goes straight into files, long output is cut with a notice, and endless output ends its cell",
        (
            "run/test_deaths.py::test_printing_110_mb_costs_less_than_60_mb_of_memory",
            "run/test_deaths.py::test_a_long_log_keeps_its_beginning_and_its_end_and_says_what_is_missing",
            "run/test_deaths.py::test_printing_without_end_is_stopped_and_the_log_is_cut",
        ),
    ),
    "3.3 output that is no UTF-8 fails the cell (D11)": Defect(
        "bytes are kept as they are and shown without control characters",
        (
            "run/test_runner.py::test_output_is_kept_as_bytes",
            "report/test_hostile.py::test_output_that_is_not_text_is_shown_with_replacement",
        ),
    ),
    "3.3 warnings vanish into uv's log (N7)": Defect(
        "what a cell prints to its standard error is apart from what making its environment printed",
        ("test_warnings_of_a_cell_stay_its_own",),
    ),
    "3.3 a failed local need is not noticed (D27)": Defect(
        "the build says that a cell failed, and its dependent runs again once it is mended",
        ("test_a_mended_need_reaches_the_cell_that_ran_without_it",),
    ),
    "3.3 a need on a commented cell (D21)": Defect(
        "is refused with its line",
        ("notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",),
    ),
    "3.3 artifacts in folders break the page (D12)": Defect(
        "they are published at their paths", ("test_an_artifact_in_a_folder_is_published",)
    ),
    "3.3 missing outputs are dropped in silence": Defect(
        "a promised file that was not written makes the cell invalid, one outside of its folder is refused",
        (
            "run/test_runner.py::test_an_output_that_was_promised_and_not_written_is_not_well",
            "notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",
        ),
    ),
    "3.3 builds side by side swap results (D16)": Defect(
        "builds of one project wait for one another",
        ("run/test_scheduler.py::test_builds_of_one_project_wait_for_one_another",),
    ),
    "3.3 a full disk exits with 0 (D18)": Defect(
        "the cell that filled it says so, and the next one has room again",
        ("run/test_deaths.py::test_a_cell_that_fills_the_disk_says_so_and_the_next_has_room_again",),
    ),
    # 3.4 Exit codes
    "3.4 mistakes exit with 0 (D1, D1b)": Defect(
        "they are one line each, and the exit code is 1",
        (
            "test_a_mistake_in_a_notebook_is_one_line_and_exit_code_1",
            "test_a_target_that_is_not_there_is_exit_code_1",
            "cli/test_commands.py::test_a_mistake_is_one_line_that_says_what_to_do",
        ),
    ),
    "3.4 a failed cell exits with 0": Defect(
        "with --strict it is 2; without, it is a row of the report by design",
        ("cli/test_build.py::test_a_failure_is_tried_again_and_strict_says_so",),
    ),
    "3.4 one bad notebook stops all, with 0": Defect(
        "nothing runs, every mistake is named, and the others can be built by name",
        (
            "notebooks/test_checks.py::test_nothing_runs_while_a_notebook_is_wrong",
            "notebooks/test_checks.py::test_another_notebooks_mistake_does_not_stop_the_one_that_is_asked_for",
        ),
    ),
    "3.4 a need on a notebook of another platform is an internal error (N1)": Defect(
        "that need is unsupported here, and the cell runs",
        ("test_a_need_of_another_platform_is_unsupported",),
    ),
    "3.4 circles are counted below zero": Defect(
        "a circle is said with its cells, within a notebook and across notebooks",
        (
            "notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",
            "notebooks/test_checks.py::test_two_independent_circles_are_both_found",
        ),
    ),
    # 3.5 Parsing
    "3.5 bad front matter is empty front matter (D15)": Defect(
        "it is an error with its line; a byte order mark is none",
        (
            "notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",
            "notebooks/test_document.py::test_only_line_feeds_end_lines",
        ),
    ),
    "3.5 unknown keys and attributes are ignored": Defect(
        "each is an error that offers the nearest known one",
        ("notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",),
    ),
    "3.5 platforms: Linux is skipped on Linux": Defect(
        "it runs there",
        (
            "notebooks/test_document.py::test_platforms_are_read_as_uvnote_does",
            "test_a_platform_is_found_however_it_is_written",
        ),
    ),
    "3.5 every .md file is run, hidden and generated ones too (D34, N8)": Defect(
        "notebooks are the project's own files, never what a cell wrote",
        (
            "notebooks/test_project.py::test_only_a_projects_own_files_are_notebooks",
            "test_what_a_cell_writes_is_not_run",
        ),
    ),
    "3.5 fences are not CommonMark's (D21)": Defect(
        "they are: examples do not run, indentation is taken off, an unclosed fence is an error",
        (
            "notebooks/test_document.py::test_fences_are_those_of_commonmark",
            "notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",
            "test_an_indented_fence_is_unindented",
        ),
    ),
    "3.5 what follows a longer closing fence vanishes": Defect(
        "it is on the page, and the next cell, too",
        ("test_what_follows_a_longer_closing_fence_is_on_the_page",),
    ),
    "3.5 commented cells become headings": Defect(
        "they are shown as code that does not run", ("test_a_commented_cell_is_no_heading",)
    ),
    "3.5 other line separators break code (D22)": Defect(
        "only line feeds end lines",
        ("notebooks/test_document.py::test_only_line_feeds_end_lines",),
    ),
    "3.5 files are read in the locale's encoding": Defect(
        "they are UTF-8 everywhere; what is not is said with its line",
        (
            "test_notebooks_are_utf8_in_any_locale",
            "notebooks/test_document.py::test_a_file_that_is_not_utf8_says_so",
        ),
    ),
    "3.5 ids and script= leave their folders (D23)": Defect(
        "both are refused with their lines",
        ("notebooks/test_checks.py::test_a_mistake_is_said_with_its_line",),
    ),
    "3.5 a reference needs a slash": Defect(
        "x.md:cell is another notebook's cell", ("test_a_reference_without_a_slash_is_one",)
    ),
    "3.5 collapse_code hides code for good (P1)": Defect(
        "it is folded and can be unfolded without scripts", ("test_collapsed_code_can_be_unfolded",)
    ),
    "3.5 the author is never shown": Defect("the page names the author", ("test_the_author_is_on_the_page",)),
    # 3.6 Site
    "3.6 artifacts and scripts of one folder overwrite one another": Defect(
        "each notebook has its own",
        (
            "report/test_pages.py::test_notebooks_of_one_folder_keep_their_own_artifacts",
            "test_every_page_leads_to_its_own_script",
        ),
    ),
    "3.6 stale pages stay (D33)": Defect(
        "pages and files of what is gone are removed",
        ("report/test_site.py::test_pages_of_notebooks_that_are_gone_are_removed",),
    ),
    "3.6 the output folder is emptied first (D48)": Defect(
        "only what builds wrote is ever removed",
        (
            "report/test_site.py::test_files_that_no_build_wrote_are_left_alone",
            "report/test_site.py::test_a_folder_with_other_files_is_refused_and_not_touched",
        ),
    ),
    "3.6 titles, figures and names run as code (D19)": Defect(
        "they are text",
        (
            "report/test_hostile.py::test_titles_outputs_and_reasons_are_text",
            "report/test_hostile.py::test_a_figure_keeps_only_what_draws",
            "report/test_hostile.py::test_file_names_with_special_characters_are_quoted_in_links",
        ),
    ),
    "3.6 a preview in output or code (D19)": Defect(
        "stays the text that it is there", ("test_a_preview_is_only_in_prose",)
    ),
    "3.6 pages have a button that needs a server": Defect(
        "pages ask for files only",
        ("browser/test_browser.py::test_a_page_complains_of_nothing_and_asks_for_files_only",),
    ),
    "3.6 serve does not reload, runs what anyone asks, and misses atomic saves (D46)": Defect(
        "it reloads, cannot be asked to run anything, refuses foreign pages, and sees files that are replaced",
        (
            "cli/test_serve.py::test_an_open_page_reloads_in_place_and_edited_prose_runs_no_cell",
            "cli/test_serve.py::test_only_get_and_head_are_answered",
            "cli/test_serve.py::test_requests_from_foreign_pages_are_refused",
        ),
    ),
    "3.6 one notebook or cell alone gets no needs (M4, M6)": Defect(
        "what it needs runs with it and is handed over",
        (
            "run/test_scheduler.py::test_only_what_is_asked_for_runs_with_what_it_needs",
            "test_a_single_notebook_is_given_what_it_needs",
        ),
    ),
}


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_has_a_test_that_exists(defect):
    for name in DEFECTS[defect].shown_by:
        file, _, test = name.rpartition("::")
        assert test in names_in(file or "notebooks/test_uvnote_defects.py"), name


def site(workspace, *targets, **options):
    """Build and publish; return a function that gives a file of the site."""
    workspace.build(*targets, **options)
    publish(workspace.root, workspace.run, workspace.root / "site")
    return lambda path: workspace.text(f"site/{path}")


def output(workspace, notebook, cell="a"):
    return workspace.text(workspace.result(notebook, cell).stdout)


def kbt(folder, monkeypatch, capfd, *arguments):
    """Run the command in this process; return its exit code and what it said."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["kbt", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr()
    return ended.value.code, said.err


PACKAGE = """# /// script
# requires-python = ">=3.11"
# dependencies = ["{name}"]
# [tool.uv.sources]
# {name} = {{ path = "../../{name}" }}
# ///
"""


def test_cells_of_one_folder_and_one_id_do_not_share_packages(workspace):
    project = '[project]\nname = "{}"\nversion = "1"\n[tool.uv]\npackage = false\n'
    for name in ("one", "two"):
        workspace.write(f"{name}/pyproject.toml", project.format(name))
    workspace.cell("a.md", "import sys; print(sys.prefix)")
    workspace.cell("b.md", PACKAGE.format(name="one") + "import sys; print(sys.prefix)")
    workspace.build(environment="uv")

    assert [workspace.result(name).status for name in ("a.md", "b.md")] == ["ok", "ok"]
    assert output(workspace, "a.md") != output(workspace, "b.md")


@pytest.mark.parametrize("name", ["MY_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN"])
def test_a_token_does_not_reach_a_cell(workspace, monkeypatch, name):
    monkeypatch.setenv(name, "hush-hush")
    workspace.cell("n.md", "import os; print(os.environ)")
    workspace.build()

    assert "hush-hush" not in output(workspace, "n.md")


def test_what_is_written_beside_the_cells_folder_is_gone_with_it(workspace, tmp_path):
    code = "from pathlib import Path\nPath('../x.txt').write_text('')\nprint(Path('../x.txt').resolve())"
    workspace.cell("n.md", code)
    workspace.build()

    assert workspace.result("n.md").artifacts == {}
    assert not Path(output(workspace, "n.md").strip()).exists()
    assert not list(workspace.root.rglob("x.txt"))


def test_a_cell_that_took_too_long_runs_again(workspace, tmp_path):
    code = (
        f"import os, time\nif not os.path.exists({str(tmp_path / 'quick')!r}): time.sleep(60)\nprint('done')"
    )
    workspace.cell("n.md", code, "id=a timeout=1")
    workspace.build()
    assert workspace.result("n.md").status == "timeout"
    (tmp_path / "quick").touch()

    assert workspace.build().started == ["n.md:a"]
    assert workspace.result("n.md").status == "ok"


def test_a_renamed_cell_runs(workspace):
    workspace.cell("n.md", "print(1)", "id=a")
    workspace.build()
    workspace.cell("n.md", "print(1)", "id=b")

    assert workspace.build().started == ["n.md:b"]


def test_a_change_travels_through_a_whole_notebook(workspace):
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


def test_a_need_added_to_one_cell_runs_that_cell(workspace):
    text = "```python id=a\nprint(1)\n```\n\n```python id=b{}\nprint(2)\n```\n"
    workspace.cell("other.md", "print(0)")
    workspace.write("n.md", text.format(""))
    workspace.build()
    workspace.write("n.md", text.format(" needs=./other.md:a"))

    assert workspace.build().started == ["n.md:b"]


def test_the_cache_is_found_from_any_folder(workspace, monkeypatch, capfd):
    workspace.cell("deep/below/n.md", "print(1)")
    workspace.build()
    code, _ = kbt(workspace.root / "deep/below", monkeypatch, capfd, "clean", "--all")

    assert code == 0
    assert not (workspace.root / ".kbt").exists()
    assert not list(workspace.root.rglob("*.py"))


def test_the_order_does_not_depend_on_the_hash_seed(workspace):
    for number in range(6):
        workspace.cell(f"n{number}.md", "print(1)", f"id=cell{number}")
    code = (
        "from pathlib import Path\nfrom kernels_bench_tools.notebooks.survey import survey_project\n"
        "from kernels_bench_tools.notebooks.project import find_project\n"
        f"print([str(n) for n in survey_project(find_project(Path({str(workspace.root)!r}))).graph.nodes])"
    )
    orders = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(orders) == 1


def test_what_was_printed_before_a_timeout_is_kept(workspace):
    workspace.cell("n.md", "import time\nprint('so far')\ntime.sleep(60)", "id=a timeout=1")
    workspace.build()

    assert workspace.result("n.md").status == "timeout"
    assert "so far" in output(workspace, "n.md")


def test_warnings_of_a_cell_stay_its_own(workspace):
    code = "import sys\nprint('careful', 'Installed 3 packages', 'more', sep='\\n', file=sys.stderr)"
    workspace.cell("n.md", code)
    workspace.build()
    run = workspace.result("n.md")

    assert workspace.text(run.stderr) == "careful\nInstalled 3 packages\nmore\n"
    assert "careful" not in workspace.text(run.environment_log)


def test_a_mended_need_reaches_the_cell_that_ran_without_it(workspace, monkeypatch, capfd):
    use = "```python id=use needs=a\nimport os; print(os.environ.get('UVNOTE_INPUT_A', 'nothing') != 'nothing')\n```\n"
    workspace.write("n.md", "```python id=a\nraise SystemExit('no')\n```\n\n" + use)
    code, said = kbt(workspace.root, monkeypatch, capfd, "build", "--env", "current", "--strict")
    assert code == 2
    assert "n.md:a  error" in said
    workspace.write("n.md", "```python id=a\nprint('mended')\n```\n\n" + use)

    assert workspace.build().started == ["n.md:a", "n.md:use"]
    assert output(workspace, "n.md", "use") == "True\n"


def test_an_artifact_in_a_folder_is_published(workspace):
    workspace.cell("n.md", "import os; os.mkdir('d'); open('d/x.txt', 'w').write('inside')")
    site(workspace)
    published = [path for path in (workspace.root / "site").rglob("x.txt") if path.parent.name == "d"]

    assert [path.read_text() for path in published] == ["inside"]


CELL = "```python id={}\nprint(1)\n```\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python id=a needs=b\n1\n```\n", "n.md:1: needs=b names no cell"),
        ("```python id=a needs=./gone.md:a\n1\n```\n", "n.md:1: needs=./gone.md:a names no notebook"),
        ("```python id=a needs=./other.md:a\n1\n```\n", "cells need one another in a circle"),
        (CELL.format("a") + CELL.format("a"), "n.md:4: the id 'a' is already that of the cell in line 1"),
        ("```python\nprint(1)\n```\n```python\nprint(1)\n```\n", "Give it an `id=` of its own"),
        ("---\ntitle: [x\n---\n", "n.md:3: the front matter is not YAML"),
        ("---\n- title\n---\n", "n.md:2: the front matter is a list"),
    ],
)
def test_a_mistake_in_a_notebook_is_one_line_and_exit_code_1(workspace, monkeypatch, capfd, text, said):
    workspace.write("other.md", "```python id=a needs=./n.md:a\n1\n```\n" if "circle" in said else "Prose.\n")
    workspace.write("n.md", text)
    code, told = kbt(workspace.root, monkeypatch, capfd, "build", "--env", "current")

    assert code == 1
    assert said in told
    assert told.count("\n") == 1
    assert not (workspace.root / "site").exists()


@pytest.mark.parametrize("verb", ["build", "run", "serve"])
def test_a_target_that_is_not_there_is_exit_code_1(workspace, monkeypatch, capfd, verb):
    workspace.cell("n.md", "print(1)")
    arguments = ["--no-build", "--port", "0"] if verb == "serve" else ["gone.md"]
    code, told = kbt(workspace.root, monkeypatch, capfd, verb, *arguments)

    assert code == 1
    assert told.count("\n") == 1


def test_a_need_of_another_platform_is_unsupported(workspace):
    workspace.cell("op/impls/x.md", "print(1)", front="platforms: [plan9]")
    workspace.cell("op/results/c.md", "print('combined')", "id=combine needs=../impls/x.md:a")
    workspace.build()

    assert workspace.result("op/impls/x.md").status == "unsupported"
    assert output(workspace, "op/results/c.md", "combine") == "combined\n"


@pytest.mark.parametrize("written", ["platforms: Linux", "platform: LINUX", "platforms: [Linux]"])
def test_a_platform_is_found_however_it_is_written(workspace, monkeypatch, written):
    monkeypatch.setenv("UVNOTE_PLATFORM", "linux")
    workspace.cell("n.md", "print(1)", front=written)
    workspace.build()

    assert workspace.result("n.md").status == "ok"


def test_what_a_cell_writes_is_not_run(workspace):
    text = "```python id=evil\\nopen('ran.txt', 'w')\\n```\\n"
    workspace.cell("n.md", f"open('report.md', 'w').write({text!r}.replace('\\\\n', chr(10)))")
    site(workspace)
    told = workspace.build()

    assert "report.md" in workspace.result("n.md").artifacts
    assert "evil" in next((workspace.root / "site").rglob("report.md")).read_text()
    assert list(told.finished) == ["n.md:a"]


def test_an_indented_fence_is_unindented(workspace):
    workspace.write("n.md", "  ```python id=a\n  if True:\n      print('fine')\n  ```\n")
    workspace.build()

    assert output(workspace, "n.md") == "fine\n"


def test_what_follows_a_longer_closing_fence_is_on_the_page(workspace):
    text = "```python id=a\nprint('first')\n````\n\nThe next paragraph.\n\n```python id=b\nprint('second')\n```\n"
    workspace.write("n.md", text)
    page = site(workspace)("n.html")

    assert "The next paragraph." in page
    assert page.index("The next paragraph.") < page.index("second")


def test_a_commented_cell_is_no_heading(workspace):
    text = "# Title\n\n# ```python id=a\nraise SystemExit\n# ```\n\nProse.\n\n```python id=b\nprint(1)\n```\n"
    workspace.write("n.md", text)
    page = site(workspace)("n.html")
    headings = [part.split("</h1>")[0] for part in page.split("<h1")[1:]]

    assert not any("python" in heading for heading in headings)
    assert "SystemExit" in page
    assert list(workspace.told.finished) == ["n.md:b"]


def test_notebooks_are_utf8_in_any_locale(workspace):
    workspace.cell("n.md", "print('größer')", prose="Grüße aus Zürich.")
    done = subprocess.run(
        [sys.executable, "-m", "kernels_bench_tools", "build", "--env", "current"],
        cwd=workspace.root,
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    page = workspace.text("site/n.html")
    assert "Grüße aus Zürich." in page
    assert "größer" in page


def test_a_reference_without_a_slash_is_one(workspace):
    workspace.cell("other.md", "open('x.txt', 'w').write('x')")
    workspace.cell(
        "n.md", "import os; print(os.listdir(os.environ['UVNOTE_FILE_OTHER_A']))", "id=a needs=other.md:a"
    )

    assert check_project(workspace.project) == []
    workspace.build()
    assert "x.txt" in output(workspace, "n.md")


def test_collapsed_code_can_be_unfolded(workspace):
    workspace.cell("n.md", "print('folded')", front="collapse_code: true")
    page = site(workspace)("n.html")
    before = page[: page.index("folded")]

    assert before.rindex("<details") > before.rfind("</details>")
    assert "open" not in before[before.rindex("<details") :].split(">")[0]


def test_the_author_is_on_the_page(workspace):
    workspace.cell("n.md", "print(1)", front="author: Ada <Lovelace>")

    assert "Ada &lt;Lovelace&gt;" in site(workspace)("n.html").partition("<body")[2]


def test_every_page_leads_to_its_own_script(workspace):
    for name in ("x", "y"):
        workspace.cell(f"op/impls/{name}.md", f"print('I am {name}')", "id=benchmark")
    site(workspace)
    scripts = {path: path.read_text() for path in (workspace.root / "site").rglob("*.py")}

    assert sorted(scripts.values()) == ["print('I am x')\n", "print('I am y')\n"]


def test_a_preview_is_only_in_prose(workspace):
    code = (
        "open('t.csv', 'w').write('first,second\\n1,2\\n')\nprint('![artifact:t.csv]')  # ![artifact:t.csv]"
    )
    workspace.cell("n.md", code, prose="Nothing here.")
    page = site(workspace)("n.html")

    assert page.count("![artifact:t.csv]") >= 2  # in the code and in what it printed
    assert "&lt;table" not in page
    assert "first,second" in page


def test_a_single_notebook_is_given_what_it_needs(workspace):
    workspace.cell("other.md", "open('x.txt', 'w').write('x')")
    use = "import os; print(os.listdir(os.environ['UVNOTE_FILE_OTHER_A']))"
    workspace.cell("n.md", use, "id=a needs=./other.md:a")
    told = workspace.build("n.md:a")

    assert told.started == ["other.md:a", "n.md:a"]
    assert "x.txt" in output(workspace, "n.md")
