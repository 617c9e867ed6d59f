"""The page of `lab site` in Chromium: it predicts as CPython does, to the bit, and asks no other host.

Pyodide comes from $PYODIDE_FOLDER, or by npm's client; without either the tests are skipped.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lablib.plan import Parallel, predict
from lablib.site.build import build_site
from lablib.site.pipelines import pipeline
from lablib.site.pyodide import find_pyodide
from lablib.site.searches import Search
from lablib.site.settings import DEFAULTS
from tests.browser.conftest import ARTIFACTS

pytestmark = [pytest.mark.browser, pytest.mark.slow]
_READY = "document.querySelector('#verdict').dataset.state && !document.querySelector('main.old')"
_SPLIT = "batch=1536&data=8&model=gpt3-175b&pipeline=8&cluster=dgx-a100"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, chromium: str) -> Iterator[str]:
    """The address of the page on a server of this host."""
    given = os.environ.get("PYODIDE_FOLDER")
    if given is None and shutil.which("npm") is None:
        pytest.skip("no npm on this machine, which fetches Pyodide: install the package `npm`")
    try:
        pyodide = find_pyodide(Path(given) if given else None)
    except ValueError as error:
        pytest.skip(f"no files of Pyodide: {error}")
    built = build_site(tmp_path_factory.mktemp("site"), pyodide)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built.folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def load(browser: Any, site: str) -> Iterator[Callable[[str], Any]]:
    """Call it with a link's settings: the page, loaded. At the end: no message in the console, and no other host."""
    complaints: list[str] = []
    pages: list[Any] = []

    def note_request(request: Any) -> None:
        if not request.url.startswith((site, "data:")):
            complaints.append(f"asks {request.url}")

    def load_page(link: str = "") -> Any:
        pages.append(page := browser.new_page(viewport={"width": 1280, "height": 900}))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", note_request)
        page.goto(f"{site}#{link}")
        settle(page)
        return page

    yield load_page
    for page in pages:
        page.close()
    assert complaints == []


@pytest.fixture(scope="module")
def loaded(load: Callable[[str], Any]) -> Any:
    return load("")


@pytest.fixture
def open_page(loaded: Any) -> Callable[..., Any]:
    """Call it with a link's settings, a width and a colour scheme: the page with its answer, without loading again."""

    def follow(link: str = "", width: int = 1280, scheme: str = "light") -> Any:
        loaded.set_viewport_size({"width": width, "height": 900})
        loaded.emulate_media(color_scheme=scheme)
        loaded.get_by_label("Theme").select_option("")
        loaded.evaluate(
            """link => new Promise(done => {
                addEventListener("hashchange", done, { once: true });
                location.hash = link + "&visit=" + Math.random();
            })""",
            link,
        )
        settle(loaded)
        return loaded

    return follow


def settle(page: Any) -> None:
    """Wait for the answer to the present settings."""
    page.wait_for_function(_READY, timeout=90_000)


def shot(page: Any, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"site-{name}.png"), full_page=True)


def value(page: Any, name: str) -> float:
    return float(page.get_attribute(f"#{name}", "data-value"))


def test_the_page_predicts_to_the_bit_and_a_control_changes_link_and_result(open_page, load):
    page = open_page(_SPLIT)
    found = predict("gpt3-175b", "dgx-a100", Parallel(8, 8, 8, zero_stage=1), 1536)
    assert value(page, "step_time_s") == found.step_time_s and value(page, "mfu") == found.mfu
    assert value(page, "energy_j") == found.energy_j(1e12)
    assert found.sentence() in page.inner_text("#verdict")
    shot(page, "light-1280")
    page.get_by_label("Micro-batch", exact=True).fill("2")
    page.get_by_label("Recompute").select_option("selective")
    settle(page)
    assert "micro_batch=2" in page.url and "recompute=selective" in page.url
    later = predict(
        "gpt3-175b", "dgx-a100", Parallel(8, 8, 8, zero_stage=1), 1536, micro_batch=2, recompute="selective"
    )
    assert value(page, "step_time_s") == later.step_time_s != found.step_time_s
    again = load(page.url.partition("#")[2])  # the link restores the settings
    assert value(again, "step_time_s") == later.step_time_s
    assert again.get_by_label("Micro-batch", exact=True).input_value() == "2"
    again.get_by_role("button", name="Reset").click()
    settle(again)
    assert "#" not in again.url


def test_mixtures_and_eager_programs_are_predicted_to_the_bit(open_page):
    for stack in ("megatron-core", "torch"):
        page = open_page(
            f"model=deepseek-v3&data=8&tensor=2&pipeline=6&expert=8&seq_len=4096&stack={stack}&zero_stage=0"
        )
        split = Parallel(8, 2, 6, expert=8)
        found = predict("deepseek-v3", "dgx-h100", split, 512, seq_len=4096, stack=stack)
        assert value(page, "step_time_s") == found.step_time_s
        cells = page.eval_on_selector_all("#memory .piece", "all => all.length")
        assert cells == 6 * len(found.memory[0])


def test_a_refusal_gives_rule_value_and_remedy_and_the_keyboard_mends_it(open_page):
    page = open_page("batch=100", scheme="dark")
    assert "data * micro_batch must divide batch: got 8 and 100; try 4" in page.inner_text("#verdict")
    assert not page.locator("#prediction").is_visible()
    page.locator(".skip").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "data":
            break
    page.keyboard.press("Control+a")
    page.keyboard.type("4")
    settle(page)
    assert "It fits" in page.inner_text("#verdict") and "data=4" in page.url
    assert value(page, "gpus") == 128
    names = page.eval_on_selector_all("form [name]", "all => all.map(each => each.labels.length)")
    assert len(names) > 40 and all(names)
    page.get_by_label("Theme").select_option("light")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background == "rgb(255, 255, 255)"
    shot(page, "dark-1280")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_only_down(open_page, scheme):
    page = open_page("model=mixtral-8x7b&expert=8", width=390, scheme=scheme)
    for details in page.locator("summary").all():
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shot(page, f"{scheme}-390")


def test_the_pipeline_is_the_replay_and_a_deadlock_is_reported(open_page):
    page = open_page("schedule=zb-h1")
    replayed = pipeline({**DEFAULTS, "schedule": "zb-h1"})
    assert page.locator("#pipeline svg title").count() == sum(map(len, replayed["actions"]))
    assert f"bubble {replayed['bubble']:.1%}" in page.inner_text("#pipeline")
    page.get_by_label("Follow the plan above").uncheck()
    page.get_by_label("Schedule of the simulator").select_option("your own plan")
    page.get_by_label("Actions of each rank").fill("rank 0: F0 B0 F1 B1\nrank 1: F0 F1 B0 B1")
    settle(page)
    assert "Deadlock" in page.inner_text("#pipeline")


def test_a_search_ends_when_it_is_cancelled_and_finds_the_plans_of_the_planner(open_page):
    changes = {"model": "gpt3-6.7b", "cluster": "pcie-a100", "batch": "64", "seq_len": "1024"}
    changes |= {"data": "1", "tensor": "1", "pipeline": "4"}
    page = open_page("&".join(f"{name}={value}" for name, value in changes.items()))
    page.get_by_role("button", name="Search").click()
    page.get_by_role("button", name="Use plan 1", exact=True).wait_for(timeout=60_000)
    page.wait_for_function("document.querySelector('#cancel').disabled", timeout=60_000)
    found = Search({**DEFAULTS, **changes}, at_once=True).go_on(100)
    rows, schedules = found["rows"], {row["schedule"] for row in found["rows"]}
    assert page.locator("#plans tbody tr th").all_inner_texts() == [row["parallel"] for row in rows]
    assert len(schedules) > 2 and page.locator("#plans tbody tr td:nth-child(3)").all_inner_texts() == [
        row["schedule"] for row in rows
    ]
    assert page.inner_text("#found").startswith(f"{found['total']:,} of {found['total']:,} plans")
    page.get_by_role("button", name="Use plan 1", exact=True).click()
    settle(page)
    assert value(page, "step_time_s") == pytest.approx(rows[0]["step_time_s"], rel=1e-12)
    open_page("model=mixtral-8x7b")
    page.get_by_role("button", name="Search").click()
    page.wait_for_function("document.querySelector('#found').textContent.endsWith('left')")
    assert page.locator("#found").get_attribute("aria-live") == "off"
    button = page.get_by_role("button", name="Use plan 1", exact=True)
    button.wait_for()
    shot(page, "searching")
    page.get_by_role("button", name="Cancel").click()
    said = page.inner_text("#found")
    assert said.startswith("Ended") and said.endswith("fit") and page.get_by_role("button", name="Search").is_enabled()
    page.get_by_label("Schedules of the search").select_option("1f1b and the one above")
    settle(page)
    assert "schedules=1f1b" in page.url


def test_sizes_by_hand_and_a_config_json_are_models(open_page):
    page = open_page("model=sizes+by+hand&layers=16")
    assert "your model on 256 GPUs" in page.inner_text("#verdict")
    page.locator("[name=model]").select_option("a config.json")
    settle(page)
    assert "config.json must be JSON" in page.inner_text("#verdict")
    sizes = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 32000}
    more = {"model_type": "llama", "max_position_embeddings": 4096, "intermediate_size": 11008}
    page.get_by_label("Text of a config.json").fill(json.dumps(sizes | more))
    settle(page)
    found = predict("llama-2-7b", "dgx-h100", Parallel(8, 8, 4, zero_stage=1), 512)
    assert value(page, "step_time_s") == found.step_time_s
