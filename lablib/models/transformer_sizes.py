"""Parameter count of a transformer, part by part, as a closed form: matrices, biases and norms.

With L layers of width D, H heads of width K, G heads of keys and values, hidden width F, vocabulary V, T positions:

    embedding   V D                                     positions   T D if they are learned
    attention   D H K + 2 D G K + H K D                 query; key and value; out
      latent    D q + q H K + D (c + R) + c H (N + Z) + H Z D
                q the queries' rank (D H K if it is 0), c the rank of keys and values; N plain, R rotary, Z value widths
    mlp         2 D F, gated 3 D F                      up (and gate), down
    experts     E times an expert's mlp; shared ones in addition; router D E
    norms       2 per layer (1 if attention and MLP share it) and 1 at the end: D each, 2 D with a shift; with a latent,
                one for each rank
    head        V D, or 0 if it is the embedding's matrix
    biases      one number for each output of a linear layer, if there are any; none for the router and the head

`active` counts the parameters that one token visits: of a mixture, k of the E experts. For large D, F = 4 D: 12 L D^2.

Source: counted from the architectures named in transformer.py; agrees with modules built by torch and with released
checkpoints (tests/models/test_transformer_sizes.py).
Simplified: no norms of queries and keys (Qwen3), no norm after the embedding (BLOOM), no biases only for queries
(Qwen2); the bias that balances DeepSeek-V3's router is not counted: it has no gradient.
"""

from dataclasses import dataclass
from functools import lru_cache

from lablib.models.transformer import Transformer
from lablib.signature import checked


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer of a transformer layer, from `rows` inputs to `columns` outputs."""

    part: str  # "attention", "mlp", "experts", "shared_experts" or "router"
    name: str  # "query", "up", ..
    rows: int  # rows, columns: its shape
    columns: int
    has_bias: bool  # whether one number for each column is added
    count: int = 1  # number of such matrices (one for each expert)
    active: int = 1  # number of them that a token visits

    @property
    def size(self) -> int:
        """Parameters of one matrix, with its bias."""
        return self.rows * self.columns + (self.columns if self.has_bias else 0)


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer, by part. `active_experts`: parameters of the experts that one token visits."""

    attention: int
    mlp: int
    experts: int
    shared_experts: int
    router: int
    norms: int
    active_experts: int

    @property
    def total(self) -> int:
        return self.attention + self.mlp + self.experts + self.shared_experts + self.router + self.norms

    @property
    def active(self) -> int:
        """Parameters that one token visits."""
        return self.total - self.experts + self.active_experts


@dataclass(frozen=True, slots=True)
class TransformerParameters:
    """Parameters of a whole transformer."""

    embedding: int  # embedding, positions, final_norm, head: outside the layers; a tied head is 0
    positions: int
    final_norm: int
    head: int
    dense_layer: LayerParameters  # one layer with a dense MLP; there are `num_dense_layers` (perhaps none)
    num_dense_layers: int
    expert_layer: LayerParameters  # one layer with experts; there are `num_expert_layers` (perhaps none)
    num_expert_layers: int

    @property
    def layers(self) -> int:
        """Parameters of all layers together, without embedding, final norm and head."""
        return self.num_dense_layers * self.dense_layer.total + self.num_expert_layers * self.expert_layer.total

    @property
    def total(self) -> int:
        return self.embedding + self.positions + self.layers + self.final_norm + self.head

    @property
    def active(self) -> int:
        """Parameters that one token visits; all of them for a dense model."""
        idle = self.expert_layer.total - self.expert_layer.active
        return self.total - self.num_expert_layers * idle

    def parts(self) -> dict[str, int]:
        """The model's parameters by part; they add up to `total`."""
        in_layers = {
            part: self.num_dense_layers * getattr(self.dense_layer, part)
            + self.num_expert_layers * getattr(self.expert_layer, part)
            for part in ("attention", "mlp", "experts", "shared_experts", "router", "norms")
        }
        in_layers["norms"] += self.final_norm
        return {"embedding": self.embedding, "positions": self.positions, **in_layers, "head": self.head}


def attention_matrices(model: Transformer) -> tuple[Matrix, ...]:
    """The linear layers of one attention."""
    d, heads = model.d_model, model.num_heads
    latent = model.latent
    if latent is None:
        kv_width = model.kv_heads * model.head_size
        shapes = [("query", d, heads * model.head_size), ("key", d, kv_width), ("value", d, kv_width)]
    else:
        query = heads * model.head_size
        shapes = [("query", d, query)]
        if latent.query_rank:
            shapes = [("query_down", d, latent.query_rank), ("query_up", latent.query_rank, query)]
        shapes += [
            ("kv_down", d, latent.kv_rank + latent.d_rotary),  # all heads share the rotary part of the keys
            ("kv_up", latent.kv_rank, heads * (latent.d_plain + latent.d_value)),
        ]
    shapes.append(("out", heads * model.value_size, d))
    return tuple(Matrix("attention", name, rows, columns, model.has_bias) for name, rows, columns in shapes)


def mlp_matrices(model: Transformer) -> tuple[Matrix, ...]:
    """The linear layers of one dense MLP."""
    return _mlp(model, "mlp", model.hidden_size, 1, 1)


def expert_matrices(model: Transformer) -> tuple[Matrix, ...]:
    """The linear layers of one mixture: router, routed and shared experts. Empty for a dense model."""
    experts = model.experts
    if experts is None:
        return ()
    router = Matrix("router", "router", model.d_model, experts.num_experts, has_bias=False)
    routed = _mlp(model, "experts", experts.d_ff, experts.num_experts, experts.num_active)
    shared = _mlp(model, "shared_experts", experts.d_ff, experts.num_shared, experts.num_shared)
    return (router, *routed, *(shared if experts.num_shared else ()))


@lru_cache(maxsize=1024)  # a search calls this thousands of times for few models
def layer_matrices(model: Transformer, *, is_expert_layer: bool = False) -> tuple[Matrix, ...]:
    """The linear layers of one layer: attention's, then the dense MLP's or the mixture's."""
    return attention_matrices(model) + (expert_matrices(model) if is_expert_layer else mlp_matrices(model))


@checked
@lru_cache(maxsize=1024)
def transformer_parameters(model: Transformer) -> TransformerParameters:
    """The parameters of a transformer, part by part: `.total`, `.active`, `.parts()`, `.dense_layer.attention`, ..."""
    embedding = model.vocab_size * model.d_model
    return TransformerParameters(
        embedding=embedding,
        positions=model.max_seq_len * model.d_model if model.positions == "learned" else 0,
        final_norm=_norm(model, model.d_model),
        head=0 if model.tied_head else embedding,
        dense_layer=_layer(model, is_expert_layer=False),
        num_dense_layers=model.num_layers - model.num_expert_layers,
        expert_layer=_layer(model, is_expert_layer=True),
        num_expert_layers=model.num_expert_layers,
    )


def _mlp(model: Transformer, part: str, d_ff: int, count: int, active: int) -> tuple[Matrix, ...]:
    up = ("gate", "up") if model.activation == "swiglu" else ("up",)
    shapes = [*((name, model.d_model, d_ff) for name in up), ("down", d_ff, model.d_model)]
    return tuple(Matrix(part, name, rows, columns, model.has_bias, count, active) for name, rows, columns in shapes)


def _norm(model: Transformer, width: int) -> int:
    return width * (2 if model.norm == "layer" else 1)


def _layer(model: Transformer, *, is_expert_layer: bool) -> LayerParameters:
    matrices = layer_matrices(model, is_expert_layer=is_expert_layer)
    sizes = {
        part: sum(matrix.count * matrix.size for matrix in matrices if matrix.part == part)
        for part in ("attention", "mlp", "experts", "shared_experts", "router")
    }
    latent_width = model.latent.query_rank + model.latent.kv_rank if model.latent else 0
    return LayerParameters(
        **sizes,
        norms=_norm(model, model.num_norms * model.d_model + latent_width),
        active_experts=sum(matrix.active * matrix.size for matrix in matrices if matrix.part == "experts"),
    )
