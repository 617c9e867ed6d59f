"""The README's pictures and badges."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
MAX_BYTES = 2_000_000  # of the animation


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("badges", ROOT / "tools" / "badges.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_a_readme_shows_a_short_animation_and_the_badges_of_the_projects_addresses(tool: ModuleType, name: str):
    text = (ROOT / name).read_text("utf-8")
    assert "](docs/animation.gif)" in text
    animation = (ROOT / "docs" / "animation.gif").read_bytes()
    assert animation[:6] == b"GIF89a" and len(animation) < MAX_BYTES
    # The hundredths of a second of each picture, from the blocks that control it (GIF89a, section 23).
    delays = re.findall(rb"\x21\xf9\x04.(..).\x00", animation, re.DOTALL)
    assert len(delays) > 20 and 15 <= sum(int.from_bytes(delay, "little") for delay in delays) / 100 <= 25
    assert tool.with_badges(text, tool.addresses()) == text, "`make badges` writes the badges"


def test_an_address_that_is_not_set_has_no_badge(tool: ModuleType):
    github, site = "https://github.com/some-one/the.lab", "https://example.org/lab/"
    assert tool.badges({}) == "" == tool.badges({"Issues": site})
    all_three = tool.badges({"Repository": f"{github}.git", "Documentation": site})
    assert re.findall(r"\[!\[(\w+)\]", all_three) == ["tests", "Binder", "site"]
    assert f"({github}/actions/workflows/ci.yml)" in all_three
    assert "mybinder.org/v2/gh/some-one/the.lab/main" in all_three and f"({site})" in all_three
    assert re.findall(
        r"\[!\[(\w+)\]", tool.badges({"Repository": "https://example.org/git/lab", "Documentation": site})
    ) == ["site"]
    written = tool.with_badges(f"a {tool.OPEN}old{tool.CLOSE} b", {"Documentation": site})
    assert written.startswith(f"a {tool.OPEN}[![site]") and written.endswith(f"{tool.CLOSE} b")
