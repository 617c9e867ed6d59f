"""A training script with eight faults, repairs of its lines, and the measurements that show each fault.

The script is a case in our own words, of mistakes that circulate in real ones. It runs without an error.
`symptoms(repairs)` runs it on two simulated nodes of two GPUs, with some lines replaced, and measures:

    writers             ranks that write the log
    texts               different texts among those read in a step
    small gradients     share of the activations' gradients, zeros left out, below FP16's smallest normal number
    gradient norm       the largest before an update of the optimizer, against the configured bound; without a bound,
                        against the norm of this model
    tokens              in the last line of the log, against those read
    activation memory   its peak, against the peak of the script as it is, with the same model and micro-batches
    padding             labels of the loss that are padding: rows of the logits' gradient that are not zero
    learning rate       of the optimizer, against the configured one

Simplified: two steps of a small model without attention; the measurements hook torch, and not the script.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from threading import Lock
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset

from lablib.launch import launch
from lablib.phases import phase
from lablib.run import Run
from lablib.signature import Count, checked
from lablib.text.units import format_quantity

RANKS, LOCAL_RANKS = 4, 2
LENGTH, STEPS, VOCABULARY = 33, 2, 64
BATCH, MICRO_BATCHES = 4, 2  # of the script's defaults
CONFIG = {"lr": 3e-3, "clip": 0.1}
NO_BOUND = 1000.0  # far above the norm of the script's gradients
NORM = 0.36  # of the gradients before the first update, repaired; 0.33 to 0.39 with other texts
SMALLEST_NORMAL = 2.0**-14
_MEASURING = Lock()  # hooks of torch are global: one measurement at a time

SCRIPT = """\
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

DEFAULTS = {"lr": 1e-3, "clip": 0.2, "batch": 4, "micro_batches": 2}
RECOMPUTE = ["TransformerBlock"]  # classes
PAD = 0  # fills texts that are short


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD):
        return x_BTD + self.down(F.gelu(self.up(x_BTD)))


def train(given, env, texts, log):
    config = {**given, **DEFAULTS}
    rank, num_ranks = int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"])
    device = torch.get_default_device()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 32), *(Block(32) for _ in range(3)), nn.Linear(32, 64))
    for module in model:
        if type(module).__name__ in RECOMPUTE:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loader = DataLoader(texts, batch_size=config["batch"])
    batches, tokens = iter(loader), 0
    for step in range(2):
        for _ in range(config["micro_batches"]):
            batch_BT = next(batches).to(device)
            with torch.autocast(device.type, dtype=torch.float16):
                logits_BTV = model(batch_BT[:, :-1])
            labels = batch_BT[:, 1:].flatten()
            loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels)
            (loss / config["micro_batches"]).backward()
            tokens += batch_BT.numel() * num_ranks * config["micro_batches"]
        for param in model.parameters():
            dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            log(f"step {step}: {tokens} tokens", tokens)
"""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One measurement of the script: its value and the right one, in words."""

    name: str
    saw: str
    wanted: str
    is_right: bool


@dataclass
class _Seen:
    """Everything that one rank showed."""

    read: list[int] = field(default_factory=list)
    logged: list[int] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    small: int = 0
    halves: int = 0
    other_types: set[str] = field(default_factory=set)
    tokens: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 0))  # of the last micro-batch
    texts_at_once: int = 0
    params: int = 0
    labels: int = 0
    padding: int = 0


def _words(seed: int, ranks: int = RANKS, micro_batches: float = MICRO_BATCHES) -> torch.Tensor:
    """Texts of random words and lengths, as many as all ranks read; 0 is padding."""
    generator, count = torch.Generator("cpu").manual_seed(seed), STEPS * BATCH * ranks * int(micro_batches)
    words = torch.randint(1, VOCABULARY, (count, LENGTH), generator=generator, device="cpu")
    ends = torch.randint(8, LENGTH + 1, (count,), generator=generator, device="cpu")
    words[torch.arange(LENGTH, device="cpu") >= ends[:, None]] = 0
    return words


class _Texts(Dataset):
    """The texts of a rank; `note` gets each index that is read."""

    def __init__(self, words: torch.Tensor, note: Callable[[int], None]):
        self._words, self._note = words, note

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> torch.Tensor:
        self._note(int(index))
        return self._words[index]


def numbered() -> str:
    """The script with the numbers of its lines."""
    return "\n".join(f"{number:2} {text}".rstrip() for number, text in enumerate(SCRIPT.splitlines(), 1))


@checked
def repaired(repairs: Mapping[int, str]) -> str:
    """The script with some lines replaced. Raises ValueError: no such line.

    repairs: number of a line -> the text for it, of one line or more, indented as the old one.
    """
    lines = list[str](SCRIPT.splitlines())
    for number, text in repairs.items():
        if not 1 <= number <= len(lines):
            raise ValueError(f"repairs has numbers of lines, 1 to {len(lines)}: got {number}; see numbered()")
        old = lines[number - 1]
        indent = old[: len(old) - len(old.lstrip())]
        first = next((each for each in text.splitlines() if each.strip()), "")
        drop = len(first) - len(first.lstrip())
        lines[number - 1] = "\n".join(indent + each[drop:] for each in text.splitlines() if each.strip())
    return "\n".join(lines) + "\n"


@checked
def symptoms(
    repairs: Mapping[int, str],
    seed: int = 0,
    config: Mapping[str, float] = MappingProxyType(CONFIG),
    *,
    ranks: Count = RANKS,
) -> list[Symptom]:
    """Run the script on simulated ranks, two on each node, with some lines replaced, and measure it.

    seed: of the texts. config: "lr" and "clip", given to the script; with a clip of `NO_BOUND` no gradient is clipped;
    perhaps "micro_batches".

    Raises ValueError: repairs of lines that do not exist. SyntaxError, LaunchError: the repaired script does not run.
    """
    words = _words(seed, ranks, config.get("micro_batches", MICRO_BATCHES))
    seen, peak_bytes = _measured(repaired(repairs), words, config, ranks)
    labels = sum(int((words[each.read, 1:] != 0).sum()) for each in seen)
    return _judged(seen, peak_bytes, _before(), labels, config)


@cache
def _before() -> tuple[_Seen, float]:
    """Rank 0 of the script as it is, and its peak of activations in bytes."""
    seen, peak_bytes = _measured(SCRIPT, _words(0), CONFIG, RANKS)
    return seen[0], peak_bytes


def _measured(source: str, words: torch.Tensor, config: Mapping[str, float], ranks: int) -> tuple[list[_Seen], float]:
    told = [_Seen() for _ in range(ranks)]
    notes = _Notes(lambda rank, index: told[rank].read.append(index), lambda rank, n: told[rank].logged.append(n))
    with _MEASURING, _hooks(told):
        run = _launched(source, words, config, ranks, notes)
    return told, float(max(run.memory.curve(0)[1]["activation"]))


@dataclass(frozen=True, slots=True)
class _Notes:
    """Called with the rank and: the index of a text that is read, tokens that are logged, the names of the script."""

    read: Callable[[int, int], None] = lambda rank, index: None
    log: Callable[[int, int], None] = lambda rank, tokens: None
    names: Callable[[int, dict[str, Any]], None] = lambda rank, names: None


def _launched(source: str, words: torch.Tensor, config: Mapping[str, float], ranks: int, notes: _Notes) -> Run:
    """Run the script on simulated ranks, two on each node."""
    try:
        code = compile(source, "the script", "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the script with its repairs must be Python: got {error}; correct the repairs") from error

    def program() -> None:
        rank, own = dist.get_rank(), dict[str, Any](__name__="script")
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank % LOCAL_RANKS), "WORLD_SIZE": str(ranks)}
        exec(code, own)
        notes.names(rank, own)
        texts = _Texts(words, partial(notes.read, rank))
        own["train"](dict(config), env, texts, lambda _, tokens: notes.log(rank, tokens))

    return launch(program, ranks=ranks, cluster="dgx-h100")


@checked
def evidence(repairs: Mapping[int, str], seed: int = 0) -> tuple[Run, list[list[tuple[float, float]]]]:
    """The run of the script, with phases "log" where a rank writes the log; per rank the losses of its micro-batches.

    A loss is a pair: of all labels, as the script computes it, and of labels that are words. Without a call of
    `F.cross_entropy(logits, labels, ...)` there are none. Raises as `symptoms`.
    """
    source, words = repaired(repairs), _words(seed)
    losses: list[list[tuple[float, float]]] = [[] for _ in range(RANKS)]

    def log(rank: int, tokens: int) -> None:
        with phase("log"):
            torch.zeros(1)  # a span, so that the timeline shows it

    def note_losses(rank: int, names: dict[str, Any]) -> None:
        def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
            loss = F.cross_entropy(logits, labels, **options)
            with torch.no_grad():
                of_words = F.cross_entropy(logits, labels, ignore_index=0)
            losses[rank].append((loss.item(), of_words.item()))
            return loss

        names["F"] = SimpleNamespace(**{**vars(F), "cross_entropy": cross_entropy})

    run = _launched(source, words, CONFIG, RANKS, _Notes(log=log))
    _launched(source, words, CONFIG, RANKS, _Notes(names=note_losses))  # apart: it takes time and memory
    return run, losses


@contextmanager
def _hooks(told: list[_Seen]) -> Iterator[None]:
    """Hooks of optimizers and of layers, which write to the rank's `_Seen`."""

    def before_update(optimizer: Any, *_: Any) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        grads = [param.grad.double().norm() for param in params if param.grad is not None]
        seen = told[dist.get_rank()]
        seen.norms.append(float(torch.stack(grads).norm()))
        seen.rates.append(float(optimizer.param_groups[0]["lr"]))
        seen.params = sum(param.numel() for param in params)

    def count(grad: torch.Tensor) -> None:
        seen = told[dist.get_rank()]
        seen.halves += int((grad != 0).sum())  # gradients of padding are zero, and may be
        seen.small += int(((grad != 0) & (grad.abs() < SMALLEST_NORMAL)).sum())

    def is_half() -> bool:
        """Autocast to FP16: a stand-in for a GPU computes in FP32 all the same."""
        kind = torch.get_default_device().type
        return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16

    def after_layer(layer: Any, inputs: Any, output: Any) -> None:
        seen = told[dist.get_rank()]
        if isinstance(layer, torch.nn.Embedding):
            seen.tokens, seen.texts_at_once = inputs[0], max(seen.texts_at_once, len(inputs[0]))
        if not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        if output.dtype == torch.float16:
            output.register_hook(count)
        if isinstance(layer, torch.nn.Linear):
            if output.dtype != torch.float16 and not is_half():
                seen.other_types.add(str(output.dtype).removeprefix("torch."))
            if layer.out_features == VOCABULARY:
                output.register_hook(partial(count_labels, seen.tokens))

    def count_labels(tokens_BT: torch.Tensor, grad_BTV: torch.Tensor) -> None:
        seen, is_label_BT = told[dist.get_rank()], (grad_BTV != 0).any(-1)
        seen.labels += int(is_label_BT.sum())
        seen.padding += int((is_label_BT[:, :-1] & (tokens_BT[:, 1:] == 0)).sum())  # the label is the next token

    with ExitStack() as undo:
        undo.callback(register_optimizer_step_pre_hook(before_update).remove)
        undo.callback(register_module_forward_hook(after_layer).remove)
        yield


def _judged(
    seen: list[_Seen], peak_bytes: float, before: tuple[_Seen, float], wanted_labels: int, config: Mapping[str, float]
) -> list[Symptom]:
    as_it_is, before_bytes = before
    writers = [rank for rank, each in enumerate(seen) if each.logged]
    a_step = [each.read[: len(each.read) // STEPS] for each in seen]
    texts = [index for indices in a_step for index in indices]
    small = sum(each.small for each in seen) / max(1, sum(each.halves for each in seen))
    norms, rates = (max(max(getattr(each, name), default=0.0) for each in seen) for name in ("norms", "rates"))
    tokens, read = max(max(each.logged, default=0) for each in seen), LENGTH * sum(len(each.read) for each in seen)
    padding, labels = sum(each.padding for each in seen), sum(each.labels for each in seen)
    bound, rate = config["clip"], config["lr"]
    is_clipped = 0.99 * bound < norms <= 1.001 * bound if bound < NO_BOUND else 0.88 * NORM < norms < 1.15 * NORM
    others = sorted(set().union(*(each.other_types for each in seen)))
    padding = max(padding, labels - wanted_labels)
    is_same = seen[0].params == as_it_is.params and seen[0].texts_at_once == as_it_is.texts_at_once
    changed = "" if is_same else f", with {seen[0].params:,} parameters and {seen[0].texts_at_once} texts at once"
    limit = f"at most {format_quantity(0.6 * before_bytes, 'B')}"
    if not is_same:
        limit += f", with {as_it_is.params:,} and {as_it_is.texts_at_once}"
    return [
        Symptom("ranks that write the log", ", ".join(map(str, writers)) or "none", "0", writers == [0]),
        Symptom(
            "different texts in a step",
            f"{len(set(texts))} of {len(texts)}",
            "all different",
            len(set(texts)) == len(texts) > 0,
        ),
        Symptom(
            "gradients of activations below 2^-14, in FP16",
            f"outputs of layers in {', '.join(others)}" if others else f"{small:.0%}",
            "less than 10%",
            small < 0.1 and not others,
        ),
        Symptom(
            "largest gradient norm at an update",
            f"{norms:.3g}",
            f"the configured {bound:g}" if bound < NO_BOUND else f"about {NORM:g}, with the bound {bound:g}",
            is_clipped,
        ),
        Symptom("tokens in the last line of the log", f"{tokens:,}", f"{read:,}, as read", tokens == read),
        Symptom(
            "peak memory of activations",
            format_quantity(peak_bytes, "B") + changed,
            limit,
            peak_bytes <= 0.6 * before_bytes and is_same,
        ),
        Symptom(
            "labels of the loss that are padding",
            f"{padding:,} of {labels:,}",
            f"none of {wanted_labels:,}",
            padding == 0 and labels == wanted_labels,
        ),
        Symptom("learning rate", f"{rates:g}", f"the configured {rate:g}", rates == rate),
    ]
