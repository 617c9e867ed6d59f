"""The page's folder holds what it needs, and its answers are those of the planner, without numpy too."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from lablib.cli.main import main
from lablib.plan import Parallel, predict, search
from lablib.site.answers import answered, prediction
from lablib.site.build import build_site
from lablib.site.pipelines import pipeline
from lablib.site.pyodide import FILES
from lablib.site.searches import Search
from lablib.site.settings import ALL, CHOICES, CONFIG, DEFAULTS, SIZES, arguments

# The planner of the page, alone: no site-packages, no numpy, no torch.
ALONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
for name in ("numpy", "torch", "plotly"):
    sys.modules[name] = None
from lablib.site.answers import answered, prediction
from lablib.site.pipelines import pipeline
from lablib.site.searches import Search
settings = json.loads(sys.argv[2])
print(json.dumps([answered(prediction, settings), answered(pipeline, settings), Search(settings).go_on(100)]))
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """A folder with the names of Pyodide's files."""
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(name)
    return folder


def test_the_planner_of_the_page_runs_alone_and_answers_to_the_bit(interpreter, tmp_path):
    built = build_site(tmp_path / "public", interpreter)
    with zipfile.ZipFile(built.folder / "planner.zip") as archive:
        archive.extractall(tmp_path / "planner")
    settings = {**DEFAULTS, "model": "gpt2", "cluster": "dgx-a100", "data": "2", "tensor": "1", "batch": "64"}
    settings |= {"schedule": "zb-h1", "pipeline": "2"}
    command = [sys.executable, "-I", "-S", "-c", ALONE, str(tmp_path / "planner"), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = Search(settings, at_once=True).go_on(100)  # with arrays: the same plans and numbers
    assert json.loads(done.stdout) == json.loads(json.dumps([prediction(settings), pipeline(settings), found]))
    assert found["done"] == found["total"] and len(found["rows"]) == 10


def test_the_folder_has_every_file_that_the_page_names_and_replaces_only_a_page(interpreter, tmp_path, capsys):
    out = tmp_path / "public"
    (interpreter / "numpy-2.4.wasm32.whl").write_text("a wheel")
    assert main(["site", "--only", "planner", "--out", str(out), "--pyodide", str(interpreter)]) == 0
    assert "http.server" in capsys.readouterr().out
    choices = json.loads((out / "choices.json").read_text())
    assert choices["packages"] == ["numpy"] and (out / "pyodide" / "numpy-2.4.wasm32.whl").is_file()
    text = "".join((out / name).read_text() for name in ("index.html", "page.js", "worker.js"))
    for path in out.glob("*"):
        assert path.name in text or path.name == "index.html", f"the page does not name {path.name}"
    for name in DEFAULTS:
        assert f'name="{name}"' in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    (out / "earlier").write_text("")
    assert build_site(out, interpreter).num_files == len([path for path in out.rglob("*") if path.is_file()])
    assert not (out / "earlier").exists()
    for wrong, said in ((interpreter, "has other files"), (interpreter / FILES[0], "is a file")):
        assert main(["site", "--only", "planner", "--out", str(wrong), "--pyodide", str(interpreter)]) == 2
        assert said in capsys.readouterr().err
    assert main(["site", "--only", "planner", "--out", str(tmp_path / "new"), "--pyodide", str(tmp_path)]) == 2
    assert "lacks pyodide.mjs" in capsys.readouterr().err


def test_npm_fills_the_cache_once_and_its_absence_or_failure_is_one_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    command = ["site", "--only", "planner", "--out", str(tmp_path / "public")]
    assert main(command) == 2 and "install the package `npm`" in capsys.readouterr().err
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.write_text("#!/bin/sh\necho npm error: no network >&2\nexit 1\n")
    npm.chmod(0o755)
    assert main(command) == 2 and "npm error: no network; give --pyodide" in capsys.readouterr().err
    with tarfile.open(tmp_path / "packed", "w:gz") as archive:
        for name in FILES:
            archive.addfile(tarfile.TarInfo(f"package/{name}"))
    npm.write_text(f"#!/bin/sh\n[ $3 = --pack-destination ] && /bin/cp {tmp_path}/packed $4/pyodide.tgz\n")
    assert main(command) == 0
    npm.unlink()
    assert main(command) == 0 and (tmp_path / "public" / "pyodide" / FILES[0]).is_file()


FEW = {**DEFAULTS, "tensor": "2", "pipeline": "1", "data": "2", "batch": "32", "seq_len": "2048"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"model": "gpt3-6.7b", "stack": "torch"}, marks=pytest.mark.thorough),
        {"model": "mixtral-8x7b", "cluster": "mi300x"},
        {"model": "gpt3-6.7b", "schedule": "interleaved", "schedules": CHOICES["schedules"][1]},
        {"model": "gpt2", "data": "1", "tensor": "1"},
    ],
)
def test_a_search_in_slices_tries_the_grid_of_the_planner_with_every_schedule(changes):
    settings = {**FEW, **changes}
    in_slices, seen = Search(settings, at_once=False), []
    while not seen or seen[-1]["done"] < seen[-1]["total"]:
        seen.append(in_slices.go_on(0.2))
    answer = seen[-1]
    assert answer == Search(settings, at_once=True).go_on(100)  # to the bit
    given = arguments(settings)
    gpus, schedule = given.pop("parallel").num_ranks, given.pop("schedule")
    del given["micro_batch"], given["recompute"]
    names = None if settings["schedules"] == ALL else ("1f1b", schedule)
    found = search(**given, gpus=gpus, schedule=names)
    numbers = len(found.plans), len(found.plans), found.plans.is_possible.sum(), len(found.order)
    assert tuple(answer[name] for name in ("done", "total", "possible", "fit")) == numbers
    assert [row["step_time_s"] for row in answer["rows"]] == pytest.approx([each.step_time_s for each in found.top()])
    assert answer["rows"] == sorted(answer["rows"], key=lambda row: row["step_time_s"])


def test_a_search_shows_progress_begins_with_the_chosen_schedule_and_refuses_choices_that_exclude_each_other():
    settings = {**FEW, "model": "gpt2", "schedule": "zb-v", "pipeline": "2"}
    one_by_one = Search(settings, at_once=False)
    first = one_by_one.go_on(0)
    assert first["done"] == 1 < first["total"]
    later = one_by_one.go_on(0)
    assert later["done"] == 2 and later["total"] == first["total"]
    chosen = Search({**settings, "schedules": CHOICES["schedules"][1]}, at_once=False).go_on(100)
    both = Search(settings, at_once=False)
    answer = both.go_on(0)
    while answer["done"] < chosen["total"]:
        answer = both.go_on(0)
    assert answer == chosen | {"total": answer["total"]}
    for at_once in (False, True):
        with pytest.raises(ValueError, match="eager torch has no products in 8 bits"):
            Search({**settings, "stack": "torch", "precision": "float8"}, at_once)


def test_settings_are_a_plan_or_one_clear_error():
    found = prediction({**DEFAULTS, "model": SIZES, "layers": "80", "width": "8192", "heads": "64", "hidden": "28672"})
    assert found["step_time_s"] == predict("llama-3-70b", "dgx-h100", Parallel(8, 8, 4, zero_stage=1), 512).step_time_s
    wrong = {
        "batch must be a whole number, 1 or more: got 'many'; try 512": {"batch": "many"},
        "tokens must be a number, 0 or more: got '-1'; try 1e12": {"tokens": "-1"},
        "unknown cluster": {"cluster": "abacus"},
        "config.json must be JSON": {"model": CONFIG, "config": "{"},
        "num_heads must be a multiple of num_kv_heads": {"model": SIZES, "heads": "32", "kv_heads": "7"},
    }
    for said, changes in wrong.items():
        assert said in answered(prediction, {**DEFAULTS, **changes})["refusal"]
    free = {**DEFAULTS, "follow": "no"}
    assert "a picture has 32 stages or fewer" in answered(pipeline, {**free, "p_stages": "33"})["refusal"]
    deadlock = "rank 0: F0 B0 F1 B1\nrank 1: F0 F1 B0 B1"
    assert answered(pipeline, {**free, "p_schedule": "your own plan", "p_own": deadlock})["circle"]
