"""A plain model made tensor parallel by a plan, which is data: names of modules, and how each is cut.

    plan = {"mlp.up": Column(), "mlp.down": Row()}
    parallelize(model, group, plan)          the model's own file knows nothing of it

A pattern is a module's name, in which `*` stands for any one part: "blocks.*.mlp.up". What may be said of a module:

    Column()       a Linear by columns; `Column(None)` where another module has taken the input into the region
    Row()          a Linear by rows
    Enter()        any module: its input enters the region once, for all that read it (queries, keys, values)
    Vocabulary()   an Embedding or the head's Linear, by words
    OnTokens()     a norm or the position embedding, which sees this rank's tokens alone (sequence parallelism)

Phases (the code has the same headings):
    1. match      every pattern to its modules; refuse what cannot be, before anything is changed
    2. broadcast  so that all ranks cut the same model
    3. replace    each layer by its shard; a parameter that two layers share stays shared

The plans of a GPT of L layers: `GPT_PLAN`, with f and g: 2 L + 1 all-reduces forward (one more for the embedding), and
2 L + 1 backward (for the head), beside those of the loss. `GPT_SEQUENCE_PLAN` has an all-gather or a reduce-scatter at
either end of each region. Both leave the logits cut, for `vocabulary_parallel_loss`. To have them whole:

    GPT_PLAN | {"head": Vocabulary(gathers=True)}

Cost for n ranks, P parameters in matrices of w bytes, and R others:
    peak bytes  (P / n + R) w of weights afterwards; P w while the whole model is there
    sent bytes  the model once, broadcast
Shapes: as in `tensor_linear.py`.
Source: the plan as a dict: torch.distributed.tensor.parallel.parallelize_module (torch 2.13, documentation); what is
cut how: Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3; Korthikanti et al., 2022, arXiv 2205.05198.
Simplified: the whole model exists on every rank before it is cut; one group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lablib.parallel.naive_data_parallel import broadcast_module
from lablib.parallel.sequence_parallel import SEQUENCE, NormOnShards, PositionsOnShards
from lablib.parallel.tensor_linear import ColumnLinear, RowLinear
from lablib.parallel.tensor_overlap import OverlappedColumnLinear
from lablib.parallel.tensor_regions import TENSOR, Group, Region
from lablib.parallel.tensor_vocabulary import VocabularyEmbedding, VocabularyHead, padded_vocabulary
from lablib.signature import check_fields, check_type, checked, whole_number


@dataclass(frozen=True, slots=True)
class Column:
    """A Linear by columns.

    Attributes:
        region: how its input enters; None: it is in the region already.
        units: the owner's attribute that counts what may not be cut apart, such as "num_heads".
        gathers: whether the output is made whole.
        overlaps: whether backward hides its communication (`tensor_overlap.py`).
    """

    region: Region | None = TENSOR
    units: str | None = None
    gathers: bool = False
    overlaps: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.overlaps and (self.region is None or self.gathers):
            raise ValueError(f"what overlaps is the sum at the entrance of a region, with the output cut: got {self}.")


@dataclass(frozen=True, slots=True)
class Row:
    """A Linear by rows. Attributes as `Column`; the region says how the sum leaves."""

    region: Region = TENSOR
    units: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Enter:
    """Any module whose first input enters the region."""

    region: Region = TENSOR

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An Embedding or the head, by words.

    Attributes:
        region: how rows leave the embedding, how the input enters the head.
        uneven: what to do with a vocabulary that the ranks do not divide: "refuse", "chunk" (the last ranks have fewer
            words) or "pad" (rows of zeros).
        gathers: of a head: whether the logits are made whole.
    """

    region: Region = TENSOR
    uneven: str = "refuse"
    gathers: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.uneven not in ("refuse", "chunk", "pad"):
            raise ValueError(f'uneven must be "refuse", "chunk" or "pad": got {self.uneven!r}.')


@dataclass(frozen=True, slots=True)
class OnTokens:
    """A LayerNorm, an RMSNorm or a position embedding of this rank's tokens."""


Style = Column | Row | Enter | Vocabulary | OnTokens
Plan = Mapping[str, Style]

GPT_PLAN: Plan = {
    "token_embedding": Vocabulary(),
    "blocks.*.attention": Enter(),
    "blocks.*.attention.query": Column(None, units="num_heads"),
    "blocks.*.attention.key": Column(None, units="num_heads"),
    "blocks.*.attention.value": Column(None, units="num_heads"),
    "blocks.*.attention.out": Row(units="num_heads"),
    "blocks.*.mlp.up": Column(),
    "blocks.*.mlp.down": Row(),
    "head": Vocabulary(),
}
GPT_SEQUENCE_PLAN: Plan = GPT_PLAN | {
    "token_embedding": Vocabulary(SEQUENCE),
    "position_embedding": OnTokens(),
    "blocks.*.attention_norm": OnTokens(),
    "blocks.*.attention": Enter(SEQUENCE),
    "blocks.*.attention.out": Row(SEQUENCE, units="num_heads"),
    "blocks.*.mlp_norm": OnTokens(),
    "blocks.*.mlp.up": Column(SEQUENCE),
    "blocks.*.mlp.down": Row(SEQUENCE),
    "final_norm": OnTokens(),
    "head": Vocabulary(SEQUENCE),
}


def parallelize(
    model: nn.Module, mesh: DeviceMesh | Group = None, plan: Plan = GPT_PLAN, *, broadcasts: bool = True
) -> nn.Module:
    """Cut the model over the ranks, in place, and return it. Give every rank the whole batch afterwards.

        model = parallelize(GPT(config), plan=GPT_SEQUENCE_PLAN)
        loss = vocabulary_parallel_loss(model(tokens), targets, config.vocab_size)
        loss.backward()                                   # every gradient that of one device: shards of it, or whole

    Communicates: broadcasts the model from the group's first rank. Make the optimizer afterwards.

    Arguments:
        model: whole, on this rank's device.
        mesh: of one axis, or a process group, over which weights are cut; None for all ranks.
        plan: by pattern of names, how a module is cut.
        broadcasts: False where all ranks hold the same model for certain.

    Raises:
        ValueError: what `check_plan` refuses, or a mesh of several axes.
    """
    group = _group_of(mesh)
    # ---- 1. match ----
    matches = check_plan(model, plan, dist.get_world_size(group))
    # ---- 2. broadcast ----
    if broadcasts:
        broadcast_module(model, group)
    # ---- 3. replace ----
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for match in matches:
        new = _made(match, group)
        for key, param in match.module.named_parameters(recurse=False):
            setattr(new, key, shared.setdefault(param, getattr(new, key)))
        for name in match.names:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, new)
    return model


@dataclass(frozen=True, eq=False, slots=True)
class Match:
    """A module that a plan names.

    Attributes:
        names: the module's, in the model; several where it is used in several places.
        module: itself.
        owner: what it is part of.
        style: what the plan says.
    """

    names: list[str]
    module: nn.Module
    owner: nn.Module
    style: Style


@checked
def check_plan(model: nn.Module, plan: Plan, ranks: int) -> list[Match]:
    """What the plan would do to the model on so many ranks. Pure; needs no rank, and a model on "meta" will do.

    Raises:
        ValueError: a pattern that names no module; a module named twice; a style that does not fit its module; ranks
            that do not divide what may not be cut; a parameter that two layers share and only one cuts; with sequence
            parallelism, a layer with parameters that the plan leaves out.
    """
    whole_number("ranks", ranks, example=2)
    if not plan:
        raise ValueError("a plan must name a module: got an empty one; try GPT_PLAN.")
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    pattern_of: dict[nn.Module, str] = {}
    for pattern, style in plan.items():
        check_type(f"plan: {pattern}", style, Style)
        found = [module for module, its in names.items() if any(_fits(name, pattern) for name in its)]
        if not found:
            near = get_close_matches(pattern, [name for its in names.values() for name in its], 1)
            raise ValueError(
                f"a pattern of the plan must name a module: {pattern!r} names none"
                + (f"; did you mean {near[0]!r}?" if near else "; see model.named_modules().")
            )
        for module in found:
            if module in pattern_of:
                raise ValueError(
                    f"a module must be named once in a plan: {names[module][0]!r} is named by {pattern_of[module]!r} "
                    f"and by {pattern!r}; leave one out."
                )
            pattern_of[module] = pattern
    matches = []
    for module, pattern in pattern_of.items():
        owner = model.get_submodule(names[module][0].rpartition(".")[0])
        matches.append(Match(names[module], module, owner, plan[pattern]))
    for match in matches:
        _check_style(match, ranks)
    _check_shared(names, pattern_of, plan)
    _check_regions(names, pattern_of, plan)
    return matches


def _fits(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _check_style(match: Match, ranks: int) -> None:
    """The style fits the kind of module, and the ranks its sizes."""
    name, module, style = match.names[0], match.module, match.style
    kinds: dict[type, tuple[type, ...]] = {
        Column: (nn.Linear,),
        Row: (nn.Linear,),
        Enter: (nn.Module,),
        Vocabulary: (nn.Embedding, nn.Linear),
        OnTokens: (nn.LayerNorm, nn.RMSNorm, nn.Embedding),
    }
    if not isinstance(module, kinds[type(style)]):
        allowed = " or a ".join(kind.__name__ for kind in kinds[type(style)])
        raise ValueError(f"{type(style).__name__} is for a {allowed}: {name!r} is a {type(module).__name__}.")
    if isinstance(module, nn.Embedding) and (module.padding_idx is not None or module.max_norm or module.sparse):
        raise ValueError(f"an embedding that is cut must be a plain one: {name!r} has padding_idx, max_norm or sparse.")
    if isinstance(style, Column | Row) and style.units is not None:
        _check_units(name, match, style.units, ranks)
    if isinstance(style, Vocabulary):
        size = len(module.weight)  # pyright: ignore[reportArgumentType]
        if style.uneven == "refuse" and size % ranks:
            raise ValueError(
                f"the vocabulary must be a multiple of the ranks: {name!r} has {size} words on {ranks} ranks; make it "
                f'{padded_vocabulary(size, ranks)}, or say Vocabulary(uneven="pad") or "chunk".'
            )


def _check_units(name: str, match: Match, units: str, ranks: int) -> None:
    num_units = getattr(match.owner, units, None)
    if not isinstance(num_units, int):
        raise ValueError(
            f"units={units!r} must be a number of {name!r}'s owner: {type(match.owner).__name__} has none."
        )
    if num_units % ranks:
        near = next(n for n in range(min(ranks, num_units), 0, -1) if num_units % n == 0)
        raise ValueError(
            f"{units} must be a multiple of the ranks: got {num_units} of {name!r} on {ranks} ranks; try {near} ranks."
        )


def _check_shared(names: dict[nn.Module, list[str]], pattern_of: Mapping[nn.Module, str], plan: Plan) -> None:
    """A parameter of two layers is cut the same way in both."""
    seen: dict[nn.Parameter, tuple[str, object]] = {}
    for module in names:
        for key, param in module.named_parameters(recurse=False):
            cut = _cut_of(plan[pattern_of[module]] if module in pattern_of else None, key)
            other, before = seen.setdefault(param, (names[module][0], cut))
            if before != cut:
                raise ValueError(
                    f"a parameter that two layers share must be cut alike in both: {other!r} and {names[module][0]!r} "
                    f"have the same {key}; give both the same style."
                )


def _cut_of(style: Style | None, key: str) -> object:
    """What a style does to a parameter; None: it stays whole."""
    if isinstance(style, Column):
        return ("rows", style.units)
    if isinstance(style, Row):
        return ("columns", style.units) if key == "weight" else None
    return ("words", style.uneven) if isinstance(style, Vocabulary) else None


def _check_regions(names: dict[nn.Module, list[str]], pattern_of: Mapping[nn.Module, str], plan: Plan) -> None:
    """Either all regions cut the sequence or none; if they do, no gradient may be forgotten."""
    regions = {style.region for style in plan.values() if not isinstance(style, OnTokens)} - {None}
    cuts = {region.cuts_sequence for region in regions if region is not None}
    if len(cuts) > 1:
        raise ValueError("the regions of a plan must all cut the sequence or none of them: got both; see GPT_PLAN.")
    styles = [plan[pattern] for pattern in set(pattern_of.values())]
    if cuts != {True}:
        if any(isinstance(style, OnTokens) for style in styles):
            raise ValueError("OnTokens is for sequence parallelism: no region of the plan cuts the sequence.")
        return
    for module, its in names.items():
        if module not in pattern_of and any(True for _ in module.parameters(recurse=False)):
            raise ValueError(
                f"with sequence parallelism every layer with parameters must be in the plan, or its gradient would be "
                f"that of this rank's tokens alone: {its[0]!r} is not; say OnTokens() for a norm."
            )


def _made(match: Match, group: Group) -> nn.Module:
    """The module in the place of the one that the plan names."""
    module, style = match.module, match.style
    if isinstance(style, Enter):
        module.register_forward_pre_hook(_EnterHook(style.region, group))
        return module
    if isinstance(style, OnTokens):
        is_norm = not isinstance(module, nn.Embedding)
        return NormOnShards(module, group) if is_norm else PositionsOnShards(module, group)  # pyright: ignore
    if isinstance(style, Vocabulary):
        pads = style.uneven == "pad"
        if isinstance(module, nn.Embedding):
            return VocabularyEmbedding(module, group, style.region, pads=pads)
        return VocabularyHead(module, group, style.region, gathers=style.gathers, pads=pads)  # pyright: ignore
    assert isinstance(module, nn.Linear)
    features = module.out_features if isinstance(style, Column) else module.in_features
    multiple_of = 1 if style.units is None else features // getattr(match.owner, style.units)
    if isinstance(style, Row):
        return RowLinear(module, group, style.region, multiple_of=multiple_of)
    kind = OverlappedColumnLinear if style.overlaps else ColumnLinear
    return kind(module, group, style.region, gathers=style.gathers, multiple_of=multiple_of)


@dataclass(frozen=True, slots=True)
class _EnterHook:
    region: Region
    group: Group

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.region.enter(args[0], self.group), *args[1:])


def _group_of(mesh: DeviceMesh | Group) -> Group:
    check_type("parallelize: mesh", mesh, DeviceMesh | dist.ProcessGroup | None)
    if not isinstance(mesh, DeviceMesh):
        return mesh
    if mesh.ndim != 1:
        raise ValueError(f"parallelize cuts over one axis: got a mesh of {mesh.ndim}; give mesh['tensor'] of it.")
    return mesh.get_group()
