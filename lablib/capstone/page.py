"""The report as one page: HTML with its figures as SVG, without network and without script, or Markdown.

    write_text("report.html", as_html(report, findings(report)))

The page is a list of blocks (headings, paragraphs, tables, figures), rendered twice: so both forms say the same.
Texts of the report are escaped; a figure in Markdown is its sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import plotly.graph_objects as go

from lablib.capstone.brief import MEASURES, num_parameters, tokens_of
from lablib.capstone.consistency import Finding
from lablib.capstone.figures import figure_loss, figure_plan, figure_predictions
from lablib.capstone.quantities import QUANTITIES, gpu_hours, mean_factor, measured
from lablib.capstone.report import CHOICES, Report
from lablib.capstone.rubric import machine_points, rubric
from lablib.figures.describe import describe
from lablib.figures.svg.picture import figure_svg
from lablib.signature import checked
from lablib.text.markup import html_page, in_html, in_markdown
from lablib.text.units import format_quantity, plural

_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto; max-width: 58rem;
  padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border: 1px solid #bbb; vertical-align: top; }
thead th { background: #f1f1f1; }
figure { margin: 1.5rem 0; }
figcaption { color: #444; font-size: .9rem; }
li.finding, .verdict { font-weight: 600; }
@media print { body { margin: 0; font-size: 11pt; } figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
"""
_LIMITS = (
    "The digest and the times show that predictions were not changed after the runs by mistake; they are in the "
    "learner's file, and prove nothing against an edit with intent, or a lock taken again after a run. The small run "
    "is not repeated: its losses and times are the file's. The large run is a simulation of one step. The loss of the "
    "large run is a scaling law's, fitted to other text."
)


@dataclass(frozen=True)
class _Block:
    kind: str  # "h1", "h2", "p", "table", "figure", "list"
    text: str = ""
    heading: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: go.Figure | None = None


@checked
def as_html(report: Report, found: Sequence[Finding]) -> str:
    """The page as HTML."""
    return html_page(report.title, _CSS, "\n".join(map(_html, _blocks(report, found)))) + "\n"


@checked
def as_markdown(report: Report, found: Sequence[Finding]) -> str:
    """The page as Markdown."""
    return "\n\n".join(map(_markdown, _blocks(report, found))) + "\n"


def _blocks(report: Report, found: Sequence[Finding]) -> list[_Block]:
    heading, text, table = partial(_Block, "h2"), partial(_Block, "p"), partial(_Block, "table", "")
    brief, criteria = report.brief, rubric(report, found)
    points, most = machine_points(criteria)
    verdict = plural(len(found), "findings") if found else "Consistent"
    blocks = [
        _Block("h1", report.title),
        text(f"By {report.author}. Brief: {brief.title}."),
        text(f"{verdict}; {points:g} of {most} points that a program gives. {_outcome(report)}"),
        heading("Brief"),
        text(brief.text),
        table(("budget", "value"), _budget(report)),
        heading("Choices"),
        table(("choice", "value", "reason"), _choices(report)),
        heading("Predictions and measurements"),
        text(f"Method: {report.predicted.method.rstrip('. ') or 'not stated'}. {_when(report)}"),
        table(("quantity", "predicted", "measured", "error", "band"), _quantities(report)),
    ]
    figures = (make(report) for make in (figure_predictions, figure_loss, figure_plan))
    blocks += [_Block("figure", figure=figure) for figure in figures if figure is not None]
    if report.small_run:
        own = ", ".join(report.small_run.own_code).replace("_", " ") or "none; the library's parts ran"
        blocks.append(text(f"The learner's own code in the small run: {own}."))
    named = [(QUANTITIES[name], each) for name, each in report.reconciled.items()]
    reconciled = [(quantity.title, quantity.error_text(each.error), each.explanation) for quantity, each in named]
    given = [("", "instructor") if each.points is None else (f"{each.points:g}", "program") for each in criteria]
    judged = [(c.name, points, str(c.most), by, c.text) for c, (points, by) in zip(criteria, given, strict=True)]
    blocks += [
        heading("Other plans"),
        table(("change", "step by the planner", "memory", "reason against it"), _alternatives(report))
        if report.alternatives
        else text("None compared."),
        heading("Reconciliation"),
        table(("quantity", "stated error", "explanation"), reconciled) if reconciled else text("Nothing reconciled."),
        heading("Conclusion"),
        text(report.conclusion or "None."),
        heading("Findings"),
        _Block("list", rows=[(str(each),) for each in found])
        if found
        else text("None: every number that can be recomputed agrees."),
        heading("Rubric"),
        table(("criterion", "points", "of", "judged by", "why"), judged),
        heading("What this page cannot show"),
        text(_LIMITS),
    ]
    return blocks


def _outcome(report: Report) -> str:
    """The plan in numbers of the brief's measure."""
    loss = report.brief.loss(report.large)
    if report.large_run is None:
        return "The large run has not been simulated."
    hours = gpu_hours(report, report.large_run.step_s)
    factor = mean_factor(report)
    off = "" if factor is None else f" Times and memory were predicted within a factor of {factor:.2f} on average."
    return f"{loss:.3f} nats by the scaling law for {hours:,.0f} GPU hours.{off}"


def _budget(report: Report) -> list[tuple[str, str]]:
    brief = report.brief
    return [
        ("cluster", f"{brief.gpus} GPUs of {brief.cluster}"),
        ("GPU hours", f"{brief.gpu_hours:,g}"),
        ("deadline", f"{brief.days:g} days"),
        ("corpus", f"{brief.corpus_tokens / 1e9:g} billion tokens"),
        ("parameters", f"{brief.min_parameters / 1e9:g} to {brief.max_parameters / 1e9:g} billion"),
        ("goal", f"{brief.goal_loss:g} nats by the scaling law"),
        ("order of good answers", MEASURES[brief.measure]),
    ]


def _choices(report: Report) -> list[tuple[str, str, str]]:
    config = report.large
    model, data, rate, axes = config.model, config.data, config.optimizer, config.parallel
    sizes = {axis: getattr(axes, axis) for axis in ("data", "expert", "context", "tensor", "pipeline")}
    split = ", ".join(f"{axis} {size}" for axis, size in sizes.items() if size not in (None, 1))
    experts = f", {model.num_experts} experts, {model.num_active} active" if model.num_experts else ""
    values = {
        "model": f"{num_parameters(model) / 1e9:.3g} billion parameters: {model.num_layers} layers, width "
        f"{model.d_model}{experts}",
        "precision": f"{config.precision.products} products, {config.precision.parameters} parameters",
        "optimizer": f"{rate.name}, rate {rate.lr:g}, {rate.schedule}",
        "batch": f"{data.batch_size} sequences of {data.seq_len} tokens, micro-batch {data.micro_batch or 'all'}, "
        f"{config.num_steps:,} steps: {tokens_of(config) / 1e9:.3g} billion tokens",
        "recomputation": config.memory.recompute,
        "axes": (split or "data: all GPUs") + (f", ZeRO-{axes.zero_stage}" if axes.zero_stage else ""),
        "schedule": axes.schedule if axes.pipeline > 1 else "none: no pipeline",
    }
    return [(name, values[name], report.reasons.get(name, "")) for name in CHOICES]


def _when(report: Report) -> str:
    runs = [run.at for run in (report.small_run, report.large_run) if run is not None]
    locked = f"Locked at {report.lock.at}" if report.lock else "Not locked"
    return f"{locked}; runs began at {', '.join(runs)}." if runs else f"{locked}; not run yet."


def _quantities(report: Report) -> list[tuple[str, ...]]:
    rows, values = list[tuple[str, ...]](), measured(report)
    for name, quantity in QUANTITIES.items():
        predicted, value = getattr(report.predicted, name), values.get(name)
        error = "" if predicted is None or value is None else quantity.error_text(quantity.error(predicted, value))
        if error and not quantity.is_within(predicted, value):  # pyright: ignore[reportArgumentType]
            error += ", beyond"
        band = f"{quantity.band:g} nats" if quantity.is_loss else f"factor {quantity.band:g}"
        shown = ["" if each is None else quantity.text(each) for each in (predicted, value)]
        rows.append((quantity.title, *shown, error, band))
    return rows


def _alternatives(report: Report) -> list[tuple[str, ...]]:
    sizes = [
        (format_quantity(each.step_s, "s"), format_quantity(each.memory_bytes, "B")) for each in report.alternatives
    ]
    return [
        (", ".join(each.changes), *size, each.reason) for each, size in zip(report.alternatives, sizes, strict=True)
    ]


def _html(block: _Block) -> str:
    if block.kind == "table":
        head = "".join(f'<th scope="col">{in_html(cell)}</th>' for cell in block.heading)
        rows = ("".join(f"<td>{in_html(cell)}</td>" for cell in row) for row in block.rows)
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    if block.kind == "list":
        return "<ul>\n" + "\n".join(f'<li class="finding">{in_html(row[0])}</li>' for row in block.rows) + "\n</ul>"
    if block.figure is not None:
        caption = f"<figcaption>{in_html(describe(block.figure))}</figcaption>"
        return f"<figure>\n{figure_svg(block.figure)}\n{caption}\n</figure>"
    return f"<{block.kind}>{in_html(block.text)}</{block.kind}>"


def _markdown(block: _Block) -> str:
    if block.kind == "table":
        rows = [block.heading, ["---"] * len(block.heading), *block.rows]
        cells = ([in_markdown(cell).replace("|", "\\|") for cell in row] for row in rows)
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)
    if block.kind == "list":
        return "\n".join(f"- {in_markdown(row[0])}" for row in block.rows)
    if block.figure is not None:
        return f"*Figure.* {in_markdown(describe(block.figure))}"
    return {"h1": "# ", "h2": "## "}.get(block.kind, "") + in_markdown(block.text)
