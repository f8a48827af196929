"""A combined notebook written for uvnote, with styles, scripts in prose, and needs on six other notebooks, runs."""

from kernels_bench_tools.notebooks.survey import survey_project

NEEDS = [
    "../impls/flash.md:benchmark",
    "../impls/mem_efficient.md:benchmark",
    "../impls/compiled.md:benchmark_default",
    "../impls/compiled.md:benchmark_max_autotune",
    "../impls/xformers.md:benchmark",
    "../impls/hub_two.md:benchmark",
    "../impls/hub_three.md:benchmark",
]
COMBINED = f"""---
title: "Attention: combined"
author: "someone"
theme: "dark"
syntax_theme: "monokai"
show_line_numbers: true
collapse_code: false
custom_css: |
    #output-setup {{
        overflow-x: auto;
    }}

    .series:hover path {{
        stroke-width: 3;
    }}
---

# Combined

<div class="chart-container">

![artifact:latency.svg]

</div>

![artifact:latency.csv]

```python id=combine collapse-code=true collapse-output=true needs={",".join(NEEDS)} outputs=latency.svg,latency.csv
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
import os
from pathlib import Path

TEXT = '''
    ```
'''
variables = [name for name in sorted(os.environ) if name.startswith("UVNOTE_FILE_")]
rows = [Path(os.environ[name], "attn.jsonl").read_text() for name in variables]
Path("latency.svg").write_text("<svg/>")
Path("latency.csv").write_text("".join(rows))
print(variables)
```

<script>
document.querySelectorAll('g[id^="series--"]').forEach((series) => series.focus());
</script>
"""


def test_a_combined_notebook_written_for_uvnote_runs(workspace):
    workspace.write("attention/results/combined.md", COMBINED)
    for need in NEEDS:
        name, _, cell = need.removeprefix("../impls/").partition(":")
        path = workspace.root / "attention/impls" / name
        text = path.read_text() if path.exists() else ""
        code = f"open('attn.jsonl', 'w').write('{name} {cell};')"
        workspace.write(f"attention/impls/{name}", f"{text}```python id={cell} outputs=attn.*\n{code}\n```\n")

    assert survey_project(workspace.project).problems() == []
    workspace.build(environment="uv")

    run = workspace.result("attention/results/combined.md", "combine")
    assert run.status == "ok", run.reason
    assert workspace.text(run.artifacts["latency.csv"]).count(";") == 7
    assert "UVNOTE_FILE_COMPILED_BENCHMARK_MAX_AUTOTUNE" in workspace.text(run.stdout)
    assert workspace.run is not None
    notebook = next(one for one in workspace.run.notebooks if one.path.endswith("combined.md"))
    assert ".series:hover path {" in notebook.front.custom_css
    assert "<script>" in notebook.blocks[-1].text
    assert run.line == COMBINED[: COMBINED.index("```python")].count("\n") + 1
