"""Colab's ipywidgets 7: the view of a widget, and the request that shows widgets of other packages."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import ipywidgets
import pytest

from lablib.widgets.parts import VIEW, view_of


def test_a_widget_of_ipywidgets_7_has_the_same_view():
    box = ipywidgets.VBox([])
    old: Any = SimpleNamespace(model_id=box.model_id)  # it has no _repr_mimebundle_
    assert view_of(old)[VIEW] == view_of(box)[VIEW]


def test_colab_is_asked_to_show_widgets_of_other_packages(monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []
    view_of(ipywidgets.VBox([]))
    assert not asked
    output = ModuleType("google.colab.output")
    output.__dict__["enable_custom_widget_manager"] = lambda: asked.append(True)
    for name, module in {"google.colab": ModuleType("google.colab"), "google.colab.output": output}.items():
        monkeypatch.setitem(sys.modules, name, module)
    view_of(ipywidgets.VBox([]))
    assert asked == [True]
