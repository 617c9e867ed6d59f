"""A script of benchmarks/, tools/ or a test, as a module of its own."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def script_module(path: Path | str, name: str = "") -> Any:
    """The script at `path`, absolute or from the root of the project; each call runs it."""
    spec = spec_from_file_location(name or Path(path).stem, ROOT / path)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
