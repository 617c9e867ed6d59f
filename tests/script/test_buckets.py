"""DDP's buckets, which torch allocates below Python, are memory of the device: nothing is copied over PCIe for them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lablib import CLUSTERS, launch, simulate_script
from tests.script_module import script_module

SCRIPT = Path(__file__).parent / "programs" / "buckets.py"


@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    widths = draw(st.lists(st.sampled_from([16, 65, 300]), min_size=2, max_size=5))
    dtypes = draw(
        st.lists(
            st.sampled_from(["float32", "float32", "bfloat16"]), min_size=len(widths) - 1, max_size=len(widths) - 1
        )
    )
    chosen = {"widths": widths, "dtypes": dtypes, "steps": draw(st.integers(1, 3))}
    chosen |= {name: draw(st.booleans()) for name in ("no_sync", "foreach", "gradient_as_bucket_view")}
    chosen["bucket_cap_mb"] = draw(st.sampled_from([0.001, 0.05, 25]))
    # torch itself refuses a static graph whose first steps are not all synchronized, and both of these together.
    graph = draw(st.sampled_from(["", "find_unused_parameters", "" if chosen["no_sync"] else "static_graph"]))
    return chosen | ({graph: True} if graph else {})


def same_on_both(chosen: dict[str, Any]) -> None:
    """A DDP program is as long, holds as much and sends as much on "cuda" in script mode as on "cpu" under `launch`."""
    plain = launch(lambda: script_module(SCRIPT).train("cpu", **chosen), ranks=2)
    script = simulate_script(SCRIPT, [json.dumps(chosen)], ranks=2)
    assert not [span.name for span in script.timeline if span.name == "copy host to device"]
    # DDP compares the sizes of its parameters on the host, whose work is the device's where a program has no device.
    (on_host,) = (
        s for s in plain.timeline if s.rank == 0 and s.name == "aten.clone" and "DistributedDataP" in s.source
    )
    # The program is bound by its launches: without a kernel it is shorter by the launch, where that is longer.
    launch_s = CLUSTERS[plain.cluster].device.launch_s
    expected_s = plain.timeline.makespan_s - max(on_host.duration_s, launch_s)
    assert script.timeline.makespan_s == pytest.approx(expected_s, rel=1e-9)
    assert script.memory.at_peak(0) == plain.memory.at_peak(0)
    assert script.traffic.sent_bytes() == plain.traffic.sent_bytes()


@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(choices())
def test_ddp_takes_the_time_and_the_memory_that_launch_says(chosen):
    same_on_both(chosen)
