"""The package says what it needs, the lock pins it, and the README lists what there is."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.script_module import script_module

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCK = [line for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines() if line[0] != "#"]
EXTRAS = PROJECT["optional-dependencies"]
MAX_BYTES = 2_000_000  # of the animation
badges = script_module("tools/badges.py")


def requirements(group: str | None = None) -> list[Requirement]:
    """Of the core, or of an extra with the extras that it names."""
    found = [Requirement(line) for line in (EXTRAS[group] if group else PROJECT["dependencies"])]
    others = [extra for one in found if one.name == PROJECT["name"] for extra in one.extras]
    return [one for one in found if one.name != PROJECT["name"]] + [r for extra in others for r in requirements(extra)]


def pins(python: str, system: str = "linux") -> dict[str, str]:
    """Name and version of every line of the lock that holds for this Python and system."""
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": system}
    locked = [Requirement(line) for line in LOCK]
    return {
        canonicalize_name(r.name): str(r.specifier).removeprefix("==")
        for r in locked
        if r.marker is None or r.marker.evaluate(environment)
    }


@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_pins_every_dependency_in_its_range_on_every_python(python, system):
    pinned = pins(python, system)
    for requirement in [*requirements(), *requirements("test")]:
        if requirement.marker is not None and not requirement.marker.evaluate({"sys_platform": system}):
            continue  # Triton is for Linux
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}"
    assert pinned["torch"] == "2.13.0"


def test_every_line_of_the_lock_is_one_exact_version_and_no_option():
    for line in LOCK:
        assert re.fullmatch(r"[a-z0-9._-]+==[0-9a-z.]+( ; .+)?", line), line


def test_the_lock_leaves_cuda_to_torch_so_that_its_cpu_build_brings_none():
    assert [line for line in LOCK if re.match(r"(nvidia|cuda)\b", line)] == []


def test_everything_lablib_imports_is_declared():
    declared = {
        canonicalize_name(requirement.name)
        for extra in ("", "data", "labs", "grading", "thirdparty")
        for requirement in requirements(extra)
    }
    provided_by = packages_distributions()
    for path in (ROOT / "lablib").rglob("*.py"):
        for module in imported(path) - set(sys.stdlib_module_names) - {"lablib"}:
            names = {canonicalize_name(name) for name in provided_by.get(module, [module])}
            assert names & declared, f"{path.relative_to(ROOT)} imports {module}: name it in pyproject.toml"


def imported(path: Path) -> set[str]:
    """The top-level modules a file imports, at its top or inside its functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


INITS = sorted((ROOT / "lablib").rglob("__init__.py"))


@pytest.mark.parametrize("init", INITS[1:], ids=lambda init: str(init.parent.relative_to(ROOT)))
def test_a_package_lists_its_files_and_names_no_other(init):
    """In its docstring, or in what it exports from them."""
    docstring = ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""
    index = init.with_suffix(".pyi")
    listed = init.read_text("utf-8") + (index.read_text("utf-8") if index.exists() else "")
    modules = {path.stem for path in init.parent.glob("*.py")} - {"__init__", "__main__"}
    assert {name for name in modules if not re.search(rf"\b{name}\b", listed)} == set()
    named = re.findall(r"(?<![/\w.])(\w+)\.py\b", docstring)
    assert {name for name in named if not list(init.parent.rglob(f"{name}.py"))} <= {"gpt", "checks"}


def test_the_maps_lines_are_the_docstrings():
    check = subprocess.run([sys.executable, str(ROOT / "tools" / "map.py"), "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


def test_the_readme_is_short_and_names_every_lab():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 100
    named = re.findall(r"^\| `(\d\d_\w+)` \|", text, re.MULTILINE)
    assert named == sorted(path.stem for path in (ROOT / "labs").glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_a_readme_shows_a_short_animation_and_the_badges_of_the_projects_addresses(name: str):
    text = (ROOT / name).read_text("utf-8")
    assert "](docs/animation.gif)" in text
    animation = (ROOT / "docs" / "animation.gif").read_bytes()
    assert animation[:6] == b"GIF89a" and len(animation) < MAX_BYTES
    # The hundredths of a second of each picture, from the blocks that control it (GIF89a, section 23).
    delays = re.findall(rb"\x21\xf9\x04.(..).\x00", animation, re.DOTALL)
    assert len(delays) > 20 and 15 <= sum(int.from_bytes(delay, "little") for delay in delays) / 100 <= 25
    assert badges.with_badges(text, badges.addresses()) == text, "`make badges` writes the badges"


def test_an_address_that_is_not_set_has_no_badge():
    github, site = "https://github.com/some-one/the.lab", "https://example.org/lab/"
    assert badges.badges({}) == "" == badges.badges({"Issues": site})
    all_three = badges.badges({"Repository": f"{github}.git", "Documentation": site})
    assert re.findall(r"\[!\[(\w+)\]", all_three) == ["tests", "Binder", "site"]
    assert f"({github}/actions/workflows/ci.yml)" in all_three
    assert "mybinder.org/v2/gh/some-one/the.lab/main" in all_three and f"({site})" in all_three
    assert re.findall(
        r"\[!\[(\w+)\]", badges.badges({"Repository": "https://example.org/git/lab", "Documentation": site})
    ) == ["site"]
    written = badges.with_badges(f"a {badges.OPEN}old{badges.CLOSE} b", {"Documentation": site})
    assert written.startswith(f"a {badges.OPEN}[![site]") and written.endswith(f"{badges.CLOSE} b")


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert not [link for link in links if not re.match("http|mailto:", link) and not (page.parent / link).exists()]


def test_the_devcontainer_and_binder_have_a_python_that_is_supported_and_the_same():
    """No image is built here; tests/test_setup.py runs the commands of both."""
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    folder = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).parent
    dockerfile = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text("utf-8")
    assert (folder / container["build"]["context"]).resolve() == ROOT
    version = re.findall(r"^FROM python:(3\.\d+)-", dockerfile, re.MULTILINE)
    assert version == [(ROOT / "binder" / "runtime.txt").read_text("utf-8").strip().removeprefix("python-")]
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version[0]}.9")

    user = container["remoteUser"]
    assert re.search(rf"^RUN useradd .*\b{user}$", dockerfile, re.MULTILINE)
    (venv,) = re.findall(r"^ENV LABLIB_VENV=(\S+)$", dockerfile, re.MULTILINE)
    assert venv.startswith(f"/home/{user}/")
    assert container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"] == f"{venv}/bin/python"
    assert (ROOT / "binder" / "postBuild").stat().st_mode & 0o111


def test_the_licences_are_the_official_texts():
    """The SHA-256 of the texts as their authors distribute them."""
    official = {
        "LICENSE": "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",  # Apache License 2.0
        "labs/LICENSE": "fd3a263fe19ed8faa9068b43abaebafc02c77897b0c6fc09abc04bb592e5f16e",  # CC BY 4.0
    }
    assert {name: sha256((ROOT / name).read_bytes()).hexdigest() for name in official} == official
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-4.0"  # a package holds the labs, with labs/LICENSE
    assert [path for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)] == [ROOT / "LICENSE"]


def test_what_is_cited_is_this_version():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"[{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_ci_runs_the_same_commands_as_a_person():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    for command in ("make lint", "make test ", "make test-labs"):
        assert command in workflow
        assert command in script
    assert "run: make dist" in workflow  # a minute more: not in the script
    assert 'python: ["3.11", "3.12", "3.13"]' in workflow
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    for path in ROOT.glob(".github/workflows/*.yml"):
        files = re.findall(r"\b(?:tests|labs|requirements)[\w/.-]*[\w*](?:\[0-9\]\*)?", path.read_text("utf-8"))
        assert all(list(ROOT.glob(name)) for name in files), files
