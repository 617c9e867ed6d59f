"""What a check says can be read on a page of any theme: contrast by WCAG 2.1, from the colours that are really used."""

import re

import pytest

from lablib.course.checks.expect import Measured
from lablib.course.checks.result import Hint, Result
from lablib.widgets.parts import LiveText
from tests.contrast import contrast

# JupyterLab 4: --jp-layout-color0 and --jp-layout-color1 (an output, and a panel beside it), --jp-ui-font-color1 as it
# looks on them.
PAGES = {"light": ("#ffffff", "#ffffff"), "dark": ("#111111", "#212121")}
INKS = {"light": "#212121", "dark": "#dedede"}  # 87% of black on white, of white on #111111


def blend(ink: str, page: str, opacity: float) -> str:
    mixed = [opacity * int(ink[i : i + 2], 16) + (1 - opacity) * int(page[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def unreadable(page: str, theme: str) -> list[str]:
    """The styles of this HTML or JavaScript whose text has less than 4.5 to 1 on a page of this theme."""
    found = []
    for style in re.findall(r"style=\"([^\"]*)\"|\"([^\"]*color:[^\"]*)\"", page):
        rules = dict(rule.split(":", 1) for rule in "".join(style).split(";") if ":" in rule)
        for ground in PAGES[theme]:
            ink, behind = rules.get("color", INKS[theme]), rules.get("background", ground)
            ink = blend(ink, behind, float(rules.get("opacity", 1)))
            if contrast(ink, behind) < 4.5:
                found.append(str(rules))
    return found


@pytest.mark.parametrize("theme", PAGES)
@pytest.mark.parametrize("status", ["passed", "failed", "not attempted"])
def test_every_status_can_be_read_in_both_themes(status, theme):
    result = Result("00", "name", "Title", status, "rule", "saw", "expected", (), "where", "next", ("note",))
    page = result._repr_html_()
    assert status in page and "color:" in page
    assert unreadable(page, theme) == []


def test_the_rules_that_held_are_folded_and_the_rest_is_not():
    held = (Measured("the sum", "equal"), Measured("bytes", "7 B, at most 8 B"))
    page = Result("00", "name", "Title", "passed", measured=held, next_step="go on")._repr_html_()
    folded = page[page.index("<details>") : page.index("</details>")]
    assert "<summary>2 rules held</summary>" in folded and "the sum: equal" in folded and "at most 8 B" in folded
    assert "go on" not in folded and "go on" in page
    failed = Result("00", "name", "Title", "failed", "bytes", "9 B", "8 B", held)._repr_html_()
    assert "<details>" not in failed and ">the sum</td>" in failed, "a rule that is broken now held in another case"


@pytest.mark.parametrize("theme", PAGES)
def test_hints_and_messages_of_widgets_can_be_read_in_both_themes(theme):
    assert unreadable(Hint("Title", ("first",), 2)._repr_html_(), theme) == []
    code = LiveText._esm if isinstance(LiveText._esm, str) else str(LiveText._esm)
    assert "color:" in code and unreadable(code, theme) == []


def test_the_measure_itself_is_right():
    """Published pairs: black on white has 21, #767676 on white is the lightest grey with 4.5 (WebAIM)."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") >= 4.5 > contrast("#777777", "#ffffff")
    assert unreadable('<b style="color:#2e7d32">passed</b>', "dark"), "what was shown before is found"
