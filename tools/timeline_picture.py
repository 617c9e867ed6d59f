"""Draw the README's picture, docs/timeline.svg, from a simulated run: `make picture`.

One training step of five layers on four GPUs that are joined by PCIe. A layer's all-reduce starts as soon as backward
has its gradient, and hides behind the layers still to come. Rank 2 has a longer batch, so the others wait for it.
The picture is plain SVG, without a script: it shows wherever the README does. Colours and letters are those of
`lablib.figures`.
"""

from html import escape
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from lablib import Timeline, launch
from lablib.figures.run.bars import KINDS, picture_of, stretches_of
from lablib.figures.run.lanes import Lane, extent, lanes_of
from lablib.figures.run.timeline import lane_index
from lablib.figures.style import FAINT_INK, FONT, GRID, INK, LOOKS
from lablib.run import COMPUTE

PICTURE = Path(__file__).parents[1] / "docs" / "timeline.svg"
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 78, 20, 44, 74  # pixels; the lanes stand between the margins
ROW = 25  # pixels of one unit of a lane's y
TITLE = "One training step on four simulated GPUs: rank 2 has more data, and the others wait for it"
SHOWN = ("forward", "backward", "optimizer", "communication", "idle")


def step() -> None:
    """Forward, backward with an all-reduce for each layer as soon as its gradient is there, optimizer."""
    rows = 1280 if dist.get_rank() == 2 else 1024
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(5)))
    works: list[dist.Work | None] = []
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(
            lambda param: works.append(dist.all_reduce(param.grad, async_op=True))  # the rest of backward runs on
        )
    model(torch.randn(rows, 1024)).square().mean().backward()
    for work in works:
        assert work is not None
        work.wait()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def svg(timeline: Timeline) -> str:
    """The timeline as an SVG document."""
    lanes = lanes_of([timeline], range(timeline.num_ranks))
    top, bottom = extent(lanes)
    height = TOP + (bottom - top) * ROW + BOTTOM
    per_s = (WIDTH - LEFT - RIGHT) / timeline.makespan_s
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="{escape(FONT)}" '
        f'role="img" aria-label="{TITLE}">',
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="#FFFFFF"/>',
        _text(LEFT, 26, TITLE, INK, 15, weight="bold"),
        *_axis(timeline.makespan_s, per_s, height - BOTTOM),
        *(part for lane in lanes for part in _row(lane, timeline, per_s, TOP - top * ROW)),
        *_work(timeline, lanes, per_s, TOP - top * ROW),
        *_legend(height - 20),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axis(makespan_s: float, per_s: float, y: float) -> list[str]:
    """A tick every half millisecond, and what the axis is."""
    parts = []
    for number in range(int(makespan_s / 0.5e-3) + 1):
        x = LEFT + number * 0.5e-3 * per_s
        parts.append(_rect(x, TOP - 6, 1, y - TOP + 6, GRID))
        parts.append(_text(x, y + 16, f"{number / 2:g} ms", FAINT_INK, 11, anchor="middle"))
    return parts


def _row(lane: Lane, timeline: Timeline, per_s: float, zero: float) -> list[str]:
    """The name of a lane and, for compute, the background that shows where it is idle."""
    y, is_compute = zero + lane.y * ROW, lane.stream == COMPUTE
    name, color = (f"rank {lane.rank}", INK) if is_compute else (lane.stream.removeprefix("comm:"), FAINT_INK)
    label = _text(LEFT - 8, y + 4, name, color, 12 if is_compute else 10, anchor="end")
    height, width = lane.height * ROW, timeline.makespan_s * per_s
    return [label, *([_rect(LEFT, y - height / 2, width, height, LOOKS["idle"].color)] if is_compute else [])]


def _work(timeline: Timeline, lanes: list[Lane], per_s: float, zero: float) -> list[str]:
    """A bar for each piece of work, then a letter on each stretch with room for one."""
    bars = picture_of(timeline.spans, lane_index(lanes), timeline.makespan_s).bars
    parts = []
    for lane, kind, start_s, end_s in zip(bars.lane, bars.kind, bars.start_s, bars.end_s, strict=True):
        height, width = lanes[lane].height * ROW, (end_s - start_s) * per_s
        gap = 0.8 if width > 6 else 0.0  # a hairline between neighbours that are wide enough for it
        y = zero + lanes[lane].y * ROW - height / 2
        parts.append(_rect(LEFT + start_s * per_s, y, width - gap, height, LOOKS[KINDS[kind]].color))
    stretches = stretches_of(bars, timeline.makespan_s / 200)
    for lane, kind, start_s, end_s in zip(
        stretches.lane, stretches.kind, stretches.start_s, stretches.end_s, strict=True
    ):
        look = LOOKS[KINDS[kind]]
        if (end_s - start_s) * per_s > 14:
            x, y = LEFT + (start_s + end_s) / 2 * per_s, zero + lanes[lane].y * ROW + 4
            # The rim in the colour of the bar keeps a letter clear of the lines between bars.
            parts.append(_text(x, y, look.letter, look.ink, 12, "middle", "bold", rim=look.color))
    return parts


def _legend(y: float) -> list[str]:
    parts, x = [], float(LEFT)
    for kind in SHOWN:
        parts += [_rect(x, y - 10, 12, 12, LOOKS[kind].color), _text(x + 18, y, LOOKS[kind].title, INK, 12)]
        x += 56 + 7 * len(kind)
    return parts


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.3):.1f}" height="{height:.1f}" fill="{fill}"/>'


def _text(
    x: float, y: float, text: str, fill: str, size: int, anchor: str = "start", weight: str = "normal", rim: str = ""
) -> str:
    edge = f' stroke="{rim}" stroke-width="3" paint-order="stroke"' if rim else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}"{edge}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(launch(step, ranks=4, cluster="pcie-a100").timeline), "utf-8")
