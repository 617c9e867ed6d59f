"""The built package: all of lablib, the course without its solutions, extras that are asked for only when needed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lablib.course.places import find_labs
from tests.course.solution_text import assert_no_solution

ROOT = Path(__file__).parents[1]
LABS = find_labs(ROOT / "labs")
# Modules of the extras: the core answers without them.
EXTRAS = (
    "anywidget ipywidgets jupyterlab ipykernel IPython jupyter_client traitlets papermill nbclient nbconvert nbformat "
    "nbval jupytext prometheus_client triton tokenizers pyarrow webdataset tfrecord torchdata zstandard datasets"
)
CORE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS.split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import lablib
assert lablib.__file__.startswith(SITE), lablib.__file__
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked; built in a copy of the project, which gets no build/ folder."""
    copy, out = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    for folder in ("lablib", "labs", "docs", "examples"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(copy / "dist"), str(copy)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = (copy / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(out)
    return out


def in_folder(site: Path, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code with the package of the wheel, in a folder outside the project."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
    environment |= {"PYTHONPATH": str(site), "LAB_PROGRESS": "off", "PYTHONDONTWRITEBYTECODE": "1"}
    code = f"SITE, EXTRAS = {str(site)!r}, {EXTRAS!r}\n{code}"
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_wheel_has_every_file_of_lablib_and_what_a_learner_needs(site: Path):
    expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "lablib").rglob("*") if path.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    found = {path.relative_to(site).as_posix() for path in (site / "lablib").rglob("*") if path.is_file()}
    handed_out = {name.removeprefix("lablib/handed_out/") for name in found if name.startswith("lablib/handed_out/")}
    assert {name for name in found if not name.startswith("lablib/handed_out/")} == expected
    wanted = {f"labs/{lab.name}.ipynb" for lab in LABS} | {f"labs/masters/{lab.name}/checks.py" for lab in LABS}
    wanted |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "labs" / "masters").glob("*/*.json")}
    wanted |= {"labs/tracks.toml", "labs/LICENSE", "docs/teaching.md", "examples/train.toml"}
    assert wanted <= handed_out


def test_no_file_has_the_text_of_a_solution(site: Path):
    texts = {
        path.relative_to(site).as_posix().removeprefix("lablib/handed_out/"): path.read_text("utf-8", errors="replace")
        for path in site.rglob("*")
        if path.is_file()
    }
    assert_no_solution(texts, LABS, computing=("lablib/", "labs/masters/"))


def test_in_any_folder_the_labs_are_there_and_copies_go_into_work(site: Path, tmp_path: Path):
    code = "from lablib.cli.main import main; assert main(['list']) == 0 and main(['update', '00']) == 0"
    done = in_folder(site, tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert f"\n{LABS[-1].number}   " in done.stdout
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["00_first_steps.ipynb"]
    chinese = in_folder(site, tmp_path, f"import os; os.environ['LAB_LANG'] = 'zh'; {code}")
    assert chinese.returncode == 0 and (tmp_path / "work" / "00_first_steps.zh.ipynb").is_file(), chinese.stderr
    (tmp_path / "work" / "notes").mkdir()
    code = """
from lablib.course.places import *
labs = find_labs_folder()
print(home_folder(labs), find_lab("0", labs).work, labs)
from lablib.cli.main import main
main(["new", "77", "mine"])
"""
    for here in (tmp_path, tmp_path / "work", tmp_path / "work" / "notes"):
        done = in_folder(site, here, code)
        home, copy, labs = done.stdout.split()
        assert (Path(home), Path(copy)) == (tmp_path, tmp_path / "work" / "00_first_steps.ipynb")
        assert Path(labs) == site / "lablib" / "handed_out" / "labs"
    assert "lab new writes a master: the labs of an installed package have none" in done.stderr


def test_launch_planner_and_figures_need_no_extra(site: Path, tmp_path: Path):
    program = """
import torch, torch.distributed as dist
from lablib import launch

def step():
    x = torch.ones(4)
    dist.all_reduce(x)
    return x.sum().item()

run = launch(step, ranks=3)
assert list(run.values) == [12.0] * 3
run.timeline.figure(), run.memory.figure(), run.traffic.table(), run.timeline.to_perfetto("t.json")
from lablib.cli.main import main
assert main(["plan", "--model", "gpt2", "--cluster", "dgx-h100", "--gpus", "8", "--batch", "64"]) == 0
assert main(["sim", "--ranks", "2", "--quiet", "program.py"]) == 0
"""
    (tmp_path / "program.py").write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    done = in_folder(site, tmp_path, CORE + program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [("open", "nbformat", "labs"), ("run 00", "nbformat", "labs"), ("train x.toml", "zstandard", "data")],
)
def test_a_command_names_the_extra_that_it_needs(site: Path, tmp_path: Path, command, package, extra):
    (tmp_path / "x.toml").write_text("")
    code = f"{CORE}\nfrom lablib.cli.main import main\nsys.exit(main({command.split()}))"
    done = in_folder(site, tmp_path, code)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"lab: the package {package} is not installed: pip install 'lablib[{extra}]'\n"


def test_a_wrong_name_is_answered_before_torch_is_imported(site: Path, tmp_path: Path):
    code = """
from lablib.cli.main import main
assert main("plan --model gpt5 --cluster dgx-h100 --batch 64".split()) == 2
assert main("sim --cluster dgx x.py".split()) == 2
assert main("sim x.py".split()) == 2
assert main("train x.toml".split()) == main("bench x.toml --cluster dgx".split()) == 2
from lablib import launch
try:
    launch(print, cluster="dgx")
except ValueError as error:
    print(error)
import sys
assert not {"torch", "pandas", "plotly"} & set(sys.modules)
"""
    done = in_folder(site, tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert "did you mean 'dgx-v100'" in done.stdout
    assert done.stderr.startswith("lab: unknown model 'gpt5': did you mean") and "x.py does not exist" in done.stderr
