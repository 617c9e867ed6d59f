"""The page of `lab site` in Chinese, in Chromium: by the link or the browser's language, with a switch."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_site import settle, shot, site, value  # noqa: F401

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ZH = json.loads((Path(__file__).parents[2] / "lablib" / "site" / "page" / "zh.json").read_text("utf-8"))


def test_the_page_speaks_the_browsers_language_and_the_switch_keeps_the_settings(browser: Any, site: str):  # noqa: F811
    page = browser.new_page(viewport={"width": 1280, "height": 900}, locale="zh-CN")
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{site}#micro_batch=2")
    settle(page)
    assert page.title() == ZH["Will it fit, how fast, how much?"]
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert page.inner_text("#verdict").startswith(ZH["It fits"]) and "块 GPU" in page.inner_text("#verdict")
    assert page.get_by_label("微批次", exact=True).input_value() == "2"
    assert ZH["bubble and messages"] in page.inner_text("#step") and "个微批次" in page.inner_text("#pipeline")
    assert page.locator("[name=recompute]").input_value() == "none"  # the value stays a name of the planner
    page.get_by_label("主题").select_option("dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    step_s = value(page, "step_time_s")
    shot(page, "chinese-1280")
    labels = page.locator("form label:not([hidden])").evaluate_all("all => all.map((each) => each.firstChild.data)")
    assert all(re.search("[\u4e00-\u9fff]", label) for label in labels if label and label.strip())
    with page.expect_navigation():
        page.locator("#language").select_option("en")
    settle(page)
    assert "lang=en" in page.url and "micro_batch=2" in page.url and value(page, "step_time_s") == step_s
    assert page.inner_text("#verdict").startswith("It fits") and page.locator("#language").input_value() == "en"
    page.close()
    assert complaints == []
