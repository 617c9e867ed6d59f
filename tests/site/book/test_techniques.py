"""Each technique has a page with its head, its signatures and links that lead somewhere."""

import re
from pathlib import Path

import pytest

import lablib
from lablib.site.book.techniques import PACKAGES, write_techniques

LABLIB = Path(lablib.__file__).parent


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("techniques")
    write_techniques(LABLIB, folder, {"08_collectives": "parallel.ring_all_reduce(x)", "05_optimizers": "ring"})
    return folder


def test_every_file_of_a_technique_package_has_a_page_that_its_package_links_to(pages):
    for package in PACKAGES:
        for path in (LABLIB / package).rglob("*.py"):
            page = pages / path.relative_to(LABLIB).with_suffix(".md")
            page = page.with_stem("index") if path.stem == "__init__" else page
            assert page.read_text("utf-8").count("\n# ") == 1 or page.read_text("utf-8").startswith("# "), page
            above = page.parent / "index.md" if page.stem != "index" else page.parents[1] / "index.md"
            assert f"]({page.relative_to(above.parent).as_posix()})" in above.read_text("utf-8")
    for index in pages.rglob("index.md"):
        for link in re.findall(r"\]\(([^)/][^)]*\.md)\)", index.read_text("utf-8")):
            assert (index.parent / link).is_file(), f"{index}: {link}"


def test_a_page_has_title_place_head_labs_and_signatures(pages):
    text = (pages / "parallel/collectives/ring.md").read_text("utf-8")
    assert "\n# Ring all-reduce\n" in text and "`lablib/parallel/collectives/ring.py`" in text
    assert "\nEvery rank gets the sum and sends at most twice its tensor.\n" in text
    assert "Used in [lab 08](/labs/08_collectives.ipynb)." in text
    assert "def ring_all_reduce(tensor: Tensor, group: dist.ProcessGroup | None = None) -> None\n```" in text
    assert "with torch.no_grad" not in text and "    return" not in text and "_place" not in text
    adamw = (pages / "optim/adamw.md").read_text("utf-8")
    assert "class AdamW(BatchedOptimizer)\n\ndef __init__(\n    self,\n    params: ParamsT,\n" in adamw
    assert "    v = beta2" not in adamw and "\nv = beta2 v + (1 - beta2) g^2 " in adamw
    segment = (pages / "memory/checkpointing.md").read_text("utf-8")
    assert "class Segment\n    start: int\n    stop: int\n" in segment
