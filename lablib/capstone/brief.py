"""The brief of a capstone: a model, a corpus, a cluster, a budget, and a small machine for the real run.

    brief = find_brief("one-billion")          a name of the course, or the path of a TOML file
    brief.require_model(config.model)          sizes within the brief
    brief.loss(config)                         of the whole run, by the scaling law

The goal is a loss by the scaling law, so that plans with other models, batches or splits can be compared. `measure`
orders the reports that meet it: the loss that the budget buys, or the GPU hours that the goal costs.

Source: the scaling law is lablib/models/scaling_law.py's `REPLICATION`, with repeated tokens discounted.
Simplified: the law's corpus and tokenizer, not the brief's; the corpus of the small run is another one.
"""

from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from lablib.configs.reading import read_toml
from lablib.errors import unknown_name
from lablib.hardware.catalogue import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.models import Experts, Transformer, transformer_parameters
from lablib.models.scaling_law import REPLICATION
from lablib.signature import Checked, Count, OneOf, Positive, check_fields, check_type, checked, hints_of
from lablib.signature.fits import without_bounds
from lablib.train.config import ModelConfig, TrainConfig

MEASURES = {"loss": "the lowest loss by the scaling law", "gpu_hours": "the fewest GPU hours"}
_FOLDER = files("lablib.capstone") / "briefs"


@dataclass(frozen=True)
class SmallMachine(Checked):
    """The machine of the real run."""

    ranks: Count = 2  # at most so many
    memory_bytes: Positive = 2e9  # of each rank
    steps: Count = 200  # at most so many


@dataclass(frozen=True)
class Brief:
    """The task of a capstone. Wrong values are a ValueError with rule, value and remedy."""

    name: str
    title: str
    text: str  # the task, in some sentences
    cluster: str  # a name of the catalogue
    gpus: Count
    gpu_hours: Positive  # the budget
    days: Positive  # the deadline
    corpus_tokens: Positive  # different tokens to train on
    min_parameters: Positive
    max_parameters: Positive
    vocab_size: Count
    seq_len: Count
    goal_loss: Positive  # nats, by the scaling law
    measure: Annotated[str, OneOf(MEASURES)] = "loss"
    num_experts: int = 0  # of each layer, at least so many
    small: SmallMachine = field(default_factory=SmallMachine)

    def __post_init__(self) -> None:
        check_fields(self)
        find_cluster(self.cluster)
        if (least := self.min_parameters) > (most := self.max_parameters):
            got = f"{least:g} and {most:g}"
            raise ValueError(f"min_parameters must be at most max_parameters: got {got}; exchange them")

    @property
    def machine(self) -> Cluster:
        return find_cluster(self.cluster)

    def broken_sizes(self, model: ModelConfig) -> list[str]:
        """Rules of the brief that a model breaks, each with value and remedy."""
        found = list[str]()
        count = num_parameters(model)
        if not self.min_parameters <= count <= self.max_parameters:
            span = f"{self.min_parameters / 1e9:g} to {self.max_parameters / 1e9:g} billion"
            found.append(f"the model must have {span} parameters: got {count / 1e9:.3g}; change layers or width")
        for name, whose in (("vocab_size", "the brief's "), ("num_experts", "")):
            if (value := getattr(model, name)) < (least := getattr(self, name)):
                found.append(f"large.model.{name} must be at least {whose}{least}: got {value}; try {least}")
        return found

    def loss(self, config: TrainConfig) -> float:
        """The loss in nats at the end of the run, by the scaling law; active parameters of a mixture."""
        active = transformer_parameters(as_transformer(config.model)).active
        return REPLICATION.loss(float(active), float(tokens_of(config)), self.corpus_tokens)


def tokens_of(config: TrainConfig) -> int:
    return config.data.batch_size * config.data.seq_len * config.num_steps


def as_transformer(model: ModelConfig, name: str = "large") -> Transformer:
    """The model as the planner describes it; every layer has the experts, if there are any."""
    sizes = model.sizes
    experts = Experts(model.num_experts, model.num_active, sizes.hidden_size) if model.num_experts else None
    return replace(Transformer.of(sizes, name), experts=experts)


def num_parameters(model: ModelConfig) -> int:
    """Parameters, of all experts."""
    return transformer_parameters(as_transformer(model)).total


def brief_names() -> list[str]:
    return sorted(path.name.removesuffix(".toml") for path in _FOLDER.iterdir() if path.name.endswith(".toml"))


@checked
def find_brief(name: str | Path, folder: Path | None = None) -> Brief:
    """A brief by name, or from a TOML file.

    `folder`: where a relative path begins. ValueError: no such brief, an unknown field, a missing or a wrong value.
    """
    where = str(name)
    if where.endswith(".toml"):
        path = Path(where) if folder is None else folder / where
        where = str(path)
    elif where in brief_names():
        path = Path(str(_FOLDER / f"{where}.toml"))
    else:
        raise unknown_name("brief", where, brief_names())
    values = read_toml(path)
    try:
        small = values.pop("small", {})
        check_type("small", small, dict)
        return _record(Brief, {**values, "small": _record(SmallMachine, small)})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _record(kind: type[Any], values: dict[str, Any]) -> Any:
    hints = hints_of(kind)
    if unknown := [name for name in values if name not in hints]:
        raise unknown_name("field", unknown[0], list(hints))
    required = [one.name for one in fields(kind) if repr(one.default) == repr(one.default_factory)]
    if missing := [name for name in required if name not in values]:
        raise ValueError(f"a brief must have {', '.join(missing)}: missing; add {missing[0]} = ...")
    for name, value in values.items():
        check_type(name, value, hints[name])
    floats = {name: float(value) for name, value in values.items() if without_bounds(hints[name]) is float}
    return kind(**(values | floats))
