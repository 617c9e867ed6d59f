"""The page in Chinese: every text of the page has a translation, every translation its text and values."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from lablib.figures.style import MEMORY_LOOKS
from lablib.plan import predict
from lablib.plan.memory import CATEGORIES
from lablib.plan.parallel import Parallel
from lablib.site.settings import CHOICES

PAGE = Path(__file__).parents[2] / "lablib" / "site" / "page"
CATALOGUE: dict[str, str] = json.loads((PAGE / "zh.json").read_text("utf-8"))
SCRIPTS = "".join((PAGE / name).read_text("utf-8") for name in ("page.js", "figures.js", "worker.js"))


class Texts(HTMLParser):
    """The texts of a page, and of attributes that a reader sees or hears."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.languages: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "input"):
            self.languages.append(dict(attrs).get("lang"))
        self.found += [value for name, value in attrs if name in ("aria-label", "placeholder") and value]

    def handle_endtag(self, tag: str) -> None:
        self.languages.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() and self.languages[1:].count(None) == len(self.languages[1:]):  # not marked as one language
            self.found.append(" ".join(data.split()))


def static_texts() -> list[str]:
    parser = Texts()
    parser.feed((PAGE / "index.html").read_text("utf-8"))
    return parser.found


def test_every_text_of_the_page_is_translated():
    assert [text for text in static_texts() if text not in CATALOGUE] == []
    found = predict("mixtral-8x7b", "dgx-h100", Parallel(8, 8, 4, expert=8, zero_stage=1), 512)
    names = [*found.parts, *found.communication, *CATEGORIES, *MEMORY_LOOKS, *CHOICES["schedules"]]
    assert [name for name in names if name not in CATALOGUE] == []


def test_every_translation_has_its_text_and_values():
    sources = "\n".join([SCRIPTS, (PAGE / "index.html").read_text("utf-8"), *static_texts()])
    for text, translation in CATALOGUE.items():
        values = [str(index) for index in range(text.count("{}"))]
        assert sorted(re.findall(r"\{(\d+)\}", translation), key=int) == values, text
        assert re.search("[\u4e00-\u9fff]", translation), text
    # Texts that begin with a capital are the page's own; others are names of the planner.
    own = [text for text in CATALOGUE if text[0].isupper() and "{}" not in text]
    planner = {"GPUs"}
    assert [text for text in own if text not in sources and text not in planner] == []


def test_the_page_names_the_catalogue_and_waits_for_it_before_it_writes():
    script = (PAGE / "page.js").read_text("utf-8")
    assert script.index('await translatePage("zh.json")') < script.index("choices.json")
    assert 'id="language"' in (PAGE / "index.html").read_text("utf-8")
