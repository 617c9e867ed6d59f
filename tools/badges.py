"""Write the README's badges from the addresses in [project.urls] of pyproject.toml: `make badges`.

    Repository      the workflow's result, and the labs on Binder (GitHub alone)
    Documentation   the site

An address that is not set has no badge.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh.md")
OPEN, CLOSE = "<!-- badges -->", "<!-- /badges -->"


def badges(urls: Mapping[str, str]) -> str:
    """The badges in Markdown, in one line; "" without an address."""
    found = list[str]()
    repository = urls.get("Repository", "").rstrip("/").removesuffix(".git")
    if on_github := re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", repository):
        workflow = f"{repository}/actions/workflows/ci.yml"
        found.append(f"[![tests]({workflow}/badge.svg)]({workflow})")
        binder = f"https://mybinder.org/v2/gh/{on_github[1]}/main?urlpath=lab/tree/labs"
        found.append(f"[![Binder](https://mybinder.org/badge_logo.svg)]({binder})")
    if site := urls.get("Documentation"):
        found.append(f"[![site](https://img.shields.io/badge/site-read_online-blue)]({site})")
    return " ".join(found)


def with_badges(readme: str, urls: Mapping[str, str]) -> str:
    """A README with its badges written anew, between the two marks."""
    before, _, rest = readme.partition(OPEN)
    return f"{before}{OPEN}{badges(urls)}{CLOSE}{rest.partition(CLOSE)[2]}"


def addresses() -> dict[str, str]:
    """[project.urls] of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {})


if __name__ == "__main__":
    for name in READMES:
        path = ROOT / name
        path.write_text(with_badges(path.read_text("utf-8"), addresses()), "utf-8")
