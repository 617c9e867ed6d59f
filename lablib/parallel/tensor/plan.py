"""A plan of tensor parallelism as data: names of modules and their cuts, and the rules of a valid plan.

    plan = {"mlp.up": Column(), "mlp.down": Row()}

A pattern is a module's name, in which `*` matches one part: "blocks.*.mlp.up". Styles of a module:

    Column()        a Linear by columns
    Row()           a Linear by rows
    SharedInput()   any module: the common input of its columns (queries, keys, values) enters the region only once
    Vocabulary()    an Embedding or the head's Linear, by words
    OnTokens()      a norm or the position embedding, on this rank's tokens (sequence parallelism)
    OfExperts()     a mixture of experts in a plan with sequence parallelism: `ExpertParallel` cuts it afterwards

The plans of a GPT of L layers (`LLAMA_PLAN`, `LLAMA_SEQUENCE_PLAN` for a Llama, with the same communication):
`GPT_PLAN`, with f and g: 2 L + 1 all-reduces forward (one more for the embedding), and
2 L + 1 backward (for the head), in addition to the loss. `GPT_SEQUENCE_PLAN` has an all-gather or a reduce-scatter at
either end of each region. Both leave the logits cut, for `vocabulary_parallel_loss`. For whole logits:

    GPT_PLAN | {"head": Vocabulary(gathers=True)}

`check_plan` needs no ranks. A plan that it refuses would lead to a wrong gradient or a deadlock.

Cost: one pass over the modules per pattern. Shapes: none.
Source: a plan as a dict: torch.distributed.tensor.parallel.parallelize_module (torch 2.13, documentation); the cuts:
Shoeybi et al., "Megatron-LM", 2019, arXiv 1909.08053, section 3; Korthikanti et al., 2022, arXiv 2205.05198.
Simplified: one kind of region for the whole model; with sequence parallelism every layer with parameters is named.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated

from torch import nn

from lablib.parallel.tensor.regions import TENSOR, Region
from lablib.parallel.tensor.sequence_parallel import SEQUENCE
from lablib.parallel.tensor.vocabulary import padded_vocabulary
from lablib.signature import Checked, Count, OneOf, check_fields, check_type, checked
from lablib.text.units import largest_divisor, plural

Uneven = Annotated[str, OneOf(("refuse", "chunk", "pad"))]


@dataclass(frozen=True, slots=True)
class Column:
    """A Linear by columns."""

    region: Region = TENSOR  # how its input enters
    units: str | None = None  # the owner's attribute that counts indivisible units, such as "num_heads"
    gathers: bool = False  # whether the output is made whole
    overlaps: bool = False  # whether backward hides its communication (`tensor/overlap.py`)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.overlaps and self.gathers:
            raise ValueError("a Column that overlaps leaves its output cut: got gathers=True; leave one out.")


@dataclass(frozen=True, slots=True)
class Row(Checked):
    """A Linear by rows. Attributes as `Column`; the region says how the sum leaves."""

    region: Region = TENSOR
    units: str | None = None


@dataclass(frozen=True, slots=True)
class SharedInput:
    """Any module with columns that read the same tensor: it enters the region once, not once per column."""


@dataclass(frozen=True, slots=True)
class Vocabulary(Checked):
    """An Embedding or the head, by words."""

    region: Region = TENSOR  # exit of rows from the embedding, entrance of the head's input
    # for a vocabulary that the ranks do not divide: "refuse", "chunk" (the last ranks have fewer words) or "pad" (rows
    # of zeros)
    uneven: Uneven = "refuse"
    gathers: bool = False  # of a head: whether the logits are made whole


@dataclass(frozen=True, slots=True)
class OnTokens:
    """A LayerNorm, an RMSNorm or a position embedding of this rank's tokens."""


@dataclass(frozen=True, slots=True)
class OfExperts:
    """A mixture of experts, left as it is for `ExpertParallel(..., cuts_sequence=True)`."""


Style = Column | Row | SharedInput | Vocabulary | OnTokens | OfExperts
Plan = Mapping[str, Style]
Names = Mapping[nn.Module, list[str]]

GPT_PLAN: Plan = {
    "token_embedding": Vocabulary(),
    "blocks.*.attention": SharedInput(),
    "blocks.*.attention.query": Column(units="num_heads"),
    "blocks.*.attention.key": Column(units="num_heads"),
    "blocks.*.attention.value": Column(units="num_heads"),
    "blocks.*.attention.out": Row(units="num_heads"),
    "blocks.*.mlp.up": Column(),
    "blocks.*.mlp.down": Row(),
    "head": Vocabulary(),
}
_ON_TOKENS = ("position_embedding", "blocks.*.attention_norm", "blocks.*.mlp_norm", "final_norm")
LLAMA_PLAN: Plan = {
    **GPT_PLAN,
    "blocks.*.attention.key": Column(units="num_kv_heads"),
    "blocks.*.attention.value": Column(units="num_kv_heads"),
    "blocks.*.mlp": SharedInput(),
    "blocks.*.mlp.gate": Column(),
}
GPT_SEQUENCE_PLAN, LLAMA_SEQUENCE_PLAN = (
    {
        name: style if isinstance(style, SharedInput | OnTokens) else replace(style, region=SEQUENCE)
        for name, style in plan.items()
    }
    for plan in (GPT_PLAN, LLAMA_PLAN)
)
GPT_SEQUENCE_PLAN |= dict.fromkeys(_ON_TOKENS, OnTokens())
LLAMA_SEQUENCE_PLAN |= dict.fromkeys(_ON_TOKENS[1:], OnTokens())  # without position embeddings


@dataclass(frozen=True, eq=False, slots=True)
class Match:
    """A module named by a plan."""

    names: list[str]  # of the module in the model; several if it is used in several places
    module: nn.Module  # the module
    owner: nn.Module  # the module that contains it
    style: Style  # of the plan
    sharing: nn.Module | None = None  # for a column, the `SharedInput` module of its entrance


@checked
def check_plan(model: nn.Module, plan: Plan, ranks: Count) -> list[Match]:
    """The modules that the plan cuts, checked for a number of ranks. Pure; also for a model on "meta".

    ValueError: a pattern that matches no module; a module named twice; a style that does not fit its module; ranks that
    do not divide its units; a shared parameter that only one layer cuts; with sequence parallelism, a mixture of
    experts, or a layer with parameters that the plan leaves out.
    """
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    styles = _styles_of(names, plan)
    matches = []
    for module, style in styles.items():
        owner = model.get_submodule(names[module][0].rpartition(".")[0])
        is_shared = isinstance(style, Column) and isinstance(styles.get(owner), SharedInput)
        matches.append(Match(names[module], module, owner, style, owner if is_shared else None))
    for match in matches:
        _check_style(match, ranks)
        if isinstance(match.style, SharedInput) and not any(one.sharing is match.module for one in matches):
            raise ValueError(
                f"SharedInput is for a module with its own Linears as columns: {match.names[0]!r} has none in the plan."
            )
    _check_shared(names, styles)
    _check_regions(names, styles)
    return matches


def _styles_of(names: Names, plan: Plan) -> dict[nn.Module, Style]:
    if not plan:
        raise ValueError("a plan must name a module: got an empty one; try GPT_PLAN.")
    patterns: dict[nn.Module, str] = {}
    for pattern, style in plan.items():
        check_type(f"plan: {pattern}", style, Style)
        found = [module for module, its in names.items() if any(fits(name, pattern) for name in its)]
        if not found:
            near = get_close_matches(pattern, [name for its in names.values() for name in its], 1)
            raise ValueError(
                f"a pattern of the plan must name a module: {pattern!r} names none"
                + (f"; did you mean {near[0]!r}?" if near else "; see model.named_modules().")
            )
        for module in found:
            if module in patterns:
                raise ValueError(
                    f"a module must be named once in a plan: {names[module][0]!r} is named by {patterns[module]!r} "
                    f"and by {pattern!r}; leave one out."
                )
            patterns[module] = pattern
    return {module: plan[pattern] for module, pattern in patterns.items()}


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern of a plan matches a module's name."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _check_style(match: Match, ranks: int) -> None:
    name, module, style = match.names[0], match.module, match.style
    kinds: dict[type, tuple[type, ...]] = {
        Column: (nn.Linear,),
        Row: (nn.Linear,),
        SharedInput: (nn.Module,),
        Vocabulary: (nn.Embedding, nn.Linear),
        OnTokens: (nn.LayerNorm, nn.RMSNorm, nn.Embedding),
        OfExperts: (nn.Module,),
    }
    if not isinstance(module, kinds[type(style)]):
        allowed = " or a ".join(kind.__name__ for kind in kinds[type(style)])
        raise ValueError(f"{type(style).__name__} is for a {allowed}: {name!r} is a {type(module).__name__}.")
    if isinstance(module, nn.Embedding) and (module.padding_idx is not None or module.max_norm or module.sparse):
        raise ValueError(f"an embedding that is cut must be a plain one: {name!r} has padding_idx, max_norm or sparse.")
    if isinstance(style, Column) and style.overlaps and match.sharing is not None:
        raise ValueError(
            f"a Column that overlaps cannot share its input: {name!r} is in a SharedInput(); leave one out."
        )
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
    features = getattr(match.module, "in_features" if isinstance(match.style, Row) else "out_features")
    if not isinstance(num_units, int) or num_units < 1 or features % num_units:
        raise ValueError(
            f"units={units!r} must be a number of {name!r}'s owner that divides its {features} features: "
            f"got {num_units!r} of {type(match.owner).__name__}."
        )
    if num_units % ranks:
        near = largest_divisor(num_units, ranks)
        raise ValueError(
            f"{units} must be a multiple of the ranks: got {num_units} of {name!r} on {ranks} ranks; try "
            f"{plural(near, 'ranks')}."
        )


def _check_shared(names: Names, styles: Mapping[nn.Module, Style]) -> None:
    seen: dict[nn.Parameter, tuple[str, object]] = {}
    for module in names:
        for key, param in module.named_parameters(recurse=False):
            cut = _cut_of(styles.get(module), key)
            other, before = seen.setdefault(param, (names[module][0], cut))
            if before != cut:
                raise ValueError(
                    f"a parameter that two layers share must be cut the same way in both: {other!r} and "
                    f"{names[module][0]!r} have the same {key}; give both the same style."
                )


def _cut_of(style: Style | None, key: str) -> object:
    if isinstance(style, Column):
        return ("rows", style.units)
    if isinstance(style, Row):
        return ("columns", style.units) if key == "weight" else None
    return ("words", style.uneven) if isinstance(style, Vocabulary) else None


def _check_regions(names: Names, styles: Mapping[nn.Module, Style]) -> None:
    """Check that all regions cut the sequence, or none; if they do, that every layer with parameters is in the plan."""
    cuts = {style.region.cuts_sequence for style in styles.values() if isinstance(style, Column | Row | Vocabulary)}
    if len(cuts) > 1:
        raise ValueError("the regions of a plan must all cut the sequence or none of them: got both; see GPT_PLAN.")
    if cuts != {True}:
        if any(isinstance(style, OnTokens) for style in styles.values()):
            raise ValueError("OnTokens is for sequence parallelism: no region of the plan cuts the sequence.")
        return
    within = tuple(f"{names[module][0]}." for module, style in styles.items() if isinstance(style, OfExperts))
    for module, its in names.items():
        if getattr(module, "needs_all_tokens", False) and module not in styles:
            raise ValueError(
                f"a mixture of experts sees all tokens of its tensor ranks, and sequence parallelism cuts them: got "
                f"{its[0]!r} in a plan that does; try OfExperts() for it, and ExpertParallel(..., cuts_sequence=True)."
            )
        if its[0].startswith(within):
            continue
        if module not in styles and any(True for _ in module.parameters(recurse=False)):
            raise ValueError(
                f"with sequence parallelism every layer with parameters must be in the plan, or its gradient would be "
                f"of this rank's tokens only: {its[0]!r} is not; use OnTokens() for a norm."
            )
