"""The module that every file of this suite imports, found whatever directory pytest was started in."""

import importlib.util
import sys
from pathlib import Path

# pytest names this file `tests.conformance.conftest`, after its place under the root of the project.
_NAME = __name__.replace("conftest", "reference")

if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).with_name("reference.py"))
    assert _spec and _spec.loader
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
