"""A script whose batches are copied beside compute, or in its stream: its steps are those of the closed form."""

import pytest

from lablib import simulate_script
from lablib.data.loading.loader import Copy, Loader
from lablib.data.loading.loader_timeline import steady_step_s

SCRIPT = """
import sys
import torch

own_stream, num_steps, num_bytes, size = sys.argv[1] == "own", *map(int, sys.argv[2:])
weight = torch.zeros(size, size, device="cuda")
batch = torch.zeros(num_bytes // 4)
copies = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()

def fetch():
    with torch.cuda.stream(copies):
        return batch.to("cuda", non_blocking=True)

on_device = fetch()
for _ in range(num_steps):
    torch.cuda.current_stream().wait_stream(copies)
    if own_stream:
        weight @ weight
        on_device = fetch()  # the next batch, during this step
    else:
        on_device = fetch()
        weight @ weight
"""


@pytest.mark.parametrize("copy", [Copy.PINNED, Copy.OWN_STREAM])
@pytest.mark.parametrize("num_bytes", [1 << 12, 1 << 23])  # quicker and slower than the step
def test_a_step_is_that_of_the_closed_form(tmp_path, copy, num_bytes):
    script = tmp_path / "copies.py"
    script.write_text(SCRIPT)
    kind = "own" if copy is Copy.OWN_STREAM else "same"

    def simulated(num_steps):
        arguments = [kind, str(num_steps), str(num_bytes), "512"]
        return simulate_script(script, arguments, ranks=1, cluster="dgx-h100")

    few, more = simulated(10), simulated(20)
    spans = list(more.timeline)
    step_s = next(span.duration_s for span in spans if span.name == "aten.mm")
    copy_s = next(span.duration_s for span in spans if span.size_bytes == num_bytes)
    assert min(step_s, copy_s) < 0.5 * max(step_s, copy_s)
    loader = Loader(1, copy=copy, batch_bytes=copy_s, copy_bytes_per_s=1.0)
    took_s = (more.timeline.makespan_s - few.timeline.makespan_s) / 10
    assert took_s == pytest.approx(steady_step_s(loader, 0.0, step_s), rel=1e-6)
