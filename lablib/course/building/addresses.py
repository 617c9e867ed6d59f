"""Addresses of the project that notebooks link to, from [project.urls] of pyproject.toml: the repository, and Colab."""

import re
from importlib.metadata import metadata

COLAB_FOLDER = "colab"  # of the repository: `lab export --colab colab`


def repository() -> str:
    """Repository in [project.urls] of the installed lablib; "" if it is not set."""
    urls = [url.split(", ", 1) for url in metadata("lablib").get_all("Project-URL") or ()]
    return next((address for name, address in urls if name == "Repository"), "")


def colab_link(name: str) -> str:
    """ "Open in Colab" as Markdown, for the lab of this name; "" without a repository on GitHub."""
    on_github = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", repository())
    place = f"https://colab.research.google.com/github/{on_github[1]}/blob/main" if on_github else ""
    return f"[Open in Colab]({place}/{COLAB_FOLDER}/{name}.ipynb)" if place else ""
