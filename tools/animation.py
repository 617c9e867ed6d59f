"""Record docs/animation.gif, which the README shows, from the bubble simulator of lab 13: `make animation`.

A notebook with one cell shows the widget. The script plays the moments of a plan, then moves the sliders, as a person
does with the keyboard, and takes a picture of the widget after each step. Needs Chromium, Playwright and Pillow.
"""

import argparse
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "animation.gif"
NOTEBOOK = "animation.ipynb"
CELL = "from lablib.widgets import bubble_simulator\nbubble_simulator(stages=4, microbatches=4)"
SIZE = {"width": 1100, "height": 1500}  # pixels of the page; the widget is as wide as its cell
# (label of the control, keys, milliseconds of each picture): some 20 seconds
STEPS = (
    ("Moment", ["ArrowRight"] * 22, 300),  # the timeline appears, action by action
    ("Moment", ["Home"], 1500),
    ("Micro-batches", ["ArrowRight"] * 12, 500),  # the bubble's share falls
    ("Schedule", ["zb-h1"], 3000),  # the same step without most of the bubble
    ("Schedule", ["1f1b"], 1500),
)
COLORS = 64  # of the palette: the figures have flat colours
MAX_BYTES = 2_000_000


def record(folder: Path) -> list[tuple[bytes, int]]:
    """Pictures (PNG) of the widget with their milliseconds, from a JupyterLab in `folder`."""
    from playwright.sync_api import sync_playwright

    cell = {"cell_type": "code", "id": "widget", "source": CELL, "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {
        "cells": [cell],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / NOTEBOOK).write_text(json.dumps(notebook))
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("a picture of the widget needs Chromium: install the package `chromium`")
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}", "--ServerApp.port_retries=99"]
    homes = {name: str(folder / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    environment = os.environ | homes | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            found = (re.search(r"http://127\.0\.0\.1:\d+/", line) for line in server.stderr)
            url = next(match[0] for match in found if match)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                page = browser.new_page(viewport=SIZE)
                page.goto(f"{url}doc/tree/{NOTEBOOK}?token={token}", timeout=60_000)
                return list(_pictures(page))
        finally:
            server.terminate()


def _pictures(page: Any) -> Iterator[tuple[bytes, int]]:
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.locator(".jp-Cell .cm-content").first.click()
    page.keyboard.press("Control+Enter")
    page.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=60_000)
    page.wait_for_timeout(3_000)
    output = page.locator(".jp-OutputArea").first
    for label, keys, time_ms in STEPS:
        control = page.locator(".widget-inline-hbox").filter(has_text=label).last
        for key in keys:
            if not key[0].isupper():
                control.locator("select").select_option(key)
            else:
                control.locator(".noUi-handle").first.press(key)
            page.wait_for_timeout(900)
            yield output.screenshot(), time_ms


def write(pictures: list[tuple[bytes, int]], out: Path) -> None:
    """One GIF, which GitHub and every browser show; equal neighbours become one picture."""
    from PIL import Image

    frames = [Image.open(BytesIO(picture)).convert("RGB") for picture, _ in pictures]
    height = max(frame.height for frame in frames)
    padded = [Image.new("RGB", (frame.width, height), "white") for frame in frames]
    for page, frame in zip(padded, frames, strict=True):
        page.paste(frame)
    palette = padded[len(padded) // 2].quantize(COLORS, dither=Image.Dither.NONE)
    reduced = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in padded]
    times = [time_ms for _, time_ms in pictures]
    reduced[0].save(out, save_all=True, append_images=reduced[1:], duration=times, loop=0, optimize=True)
    size = out.stat().st_size
    print(f"{out}: {len(frames)} pictures, {sum(times) / 1000:.0f} s, {size / 1e6:.2f} MB")
    if size > MAX_BYTES:
        sys.exit(f"the animation must have at most {MAX_BYTES / 1e6:.0f} MB: take fewer pictures or colours")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record docs/animation.gif from the bubble simulator.")
    parser.add_argument("--out", type=Path, default=OUT, help="file; docs/animation.gif")
    out = parser.parse_args().out
    missing = [name for name in ("PIL", "playwright") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit("the animation needs Playwright and Pillow: pip install playwright pillow")
    with tempfile.TemporaryDirectory() as folder:
        write(record(Path(folder)), out)


if __name__ == "__main__":
    main()
