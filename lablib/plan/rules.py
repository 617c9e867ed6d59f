"""Which splits are possible, as numbered rules: one by one for a plan, or for a million at once.

A rule is a test on numbers or arrays, and a sentence for who broke it. `predict` raises the sentence of the first rule
that is broken; `predict_many` keeps its number for each plan, and `search` counts them.

     0 expert       times expert_tensor divides          7 kv_heads    tensor divides them, or is a multiple
                    tensor * context * data
     1 replicas     divide data                          8 layers      one for each piece of the pipeline
     2 one stage    has one piece                        9 mixture     expert > 1, and an expert_tensor, need one
     3 heads        tensor divides them                 10 experts     expert divides them
     4 hidden size  tensor divides it, of MLPs and of   11 one piece   on each stage, of schedules without chunks
                    shared experts, where there are any
     5 seq_len      pieces of equal length divide it    12 two pieces  on each stage, of V-shaped schedules
     6 batch        data * micro_batch divides it       13 rounds      interleaved: pipeline divides micro-batches
    15 own tokens   expert_tensor other than tensor     14 torus       has so many nodes
                    needs sequence parallelism          16 expert's width  expert_tensor divides it
    17 pairs        dualpipe-v: 2 micro-batches         18 ZeRO-2      is in no eager stack: torch has none
                    a stage, or more
"""

from collections.abc import Callable
from math import gcd, prod
from typing import NamedTuple

from lablib.cost.arrays import Numbers
from lablib.hardware.cluster import Cluster
from lablib.hardware.topology import Torus
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.parallel import Parallel

CHUNKED = ("interleaved", "breadth-first")


class Question(NamedTuple):
    """What is asked for: one plan, or many of one schedule (arrays)."""

    model: Transformer
    cluster: Cluster
    schedule: str
    data: Numbers
    tensor: Numbers
    pipeline: Numbers
    context: Numbers
    expert: Numbers
    expert_tensor: Numbers
    chunks: Numbers
    replicas: Numbers
    micro_batch: Numbers
    batch: Numbers
    seq_len: Numbers
    sequence_parallel: bool = True
    zero_stage: int = 0
    is_eager: bool = False  # of the stack


class Rule(NamedTuple):
    """One rule: its name, where it is broken (a truth, or an array of them), and what to say of one plan that does."""

    name: str
    is_broken: Callable[[Question], Numbers]
    sentence: Callable[[Question], str]


def obstacles(q: Question) -> list[str]:
    """Why one plan is impossible, each reason with a remedy; empty where it is possible."""
    return [rule.sentence(q) for rule in RULES if rule.is_broken(q)]


def _divides(what: str, axis: str, size: int, ranks: int) -> str:
    return f"{axis} must divide {what}: got {ranks} and {size}; try {gcd(size, ranks)}"


def _refusal(q: Question) -> str:
    """What `Parallel` itself says."""
    try:
        Parallel(
            *(q.data, q.tensor, q.pipeline, q.context, q.expert, q.chunks, q.sequence_parallel),
            replicas=q.replicas,
            expert_tensor=None if q.expert_tensor == q.tensor else q.expert_tensor,
        )
    except ValueError as error:
        return str(error)
    raise AssertionError(f"a possible split was refused: {q}")


def _num_microbatches(q: Question) -> Numbers:
    return q.batch // (q.data * q.micro_batch)


def _num_nodes(q: Question) -> Numbers:
    return -(-(q.data * q.tensor * q.context * q.pipeline) // q.cluster.devices_per_node)


def _torus_nodes(q: Question) -> int | float:
    network = q.cluster.topology
    return prod(network.shape) if isinstance(network, Torus) else float("inf")


def _num_experts(q: Question) -> int:
    return q.model.experts.num_experts if q.model.experts else 0


def _sequence_pieces(q: Question) -> Numbers:
    """Pieces of a sequence: a context rank has one from its head and one from its tail, so that all work the same."""
    return (1 + (q.context > 1)) * q.context * (q.tensor if q.sequence_parallel else 1)


def _dense_width(q: Question) -> int:
    return q.model.hidden_size if q.model.num_expert_layers < q.model.num_layers else 0


def _shared_width(q: Question) -> int:
    return q.model.experts.num_shared * q.model.experts.d_ff if q.model.experts else 0


def _expert_width(q: Question) -> int:
    return q.model.experts.d_ff if q.model.experts else 0


RULES = (
    Rule("expert", lambda q: q.tensor * q.context * q.data % (q.expert * q.expert_tensor) != 0, _refusal),
    Rule("replicas", lambda q: q.data % q.replicas != 0, _refusal),
    Rule("one stage", lambda q: (q.chunks > 1) & (q.pipeline == 1), _refusal),
    Rule(
        "heads",
        lambda q: q.model.num_heads % q.tensor != 0,
        lambda q: _divides("num_heads", "tensor", q.model.num_heads, q.tensor),
    ),
    Rule(
        "hidden size",
        lambda q: (_dense_width(q) % q.tensor != 0) | (_shared_width(q) % q.tensor != 0),
        lambda q: (
            _divides("the hidden size of the MLP", "tensor", _dense_width(q), q.tensor)
            if _dense_width(q) % q.tensor
            else _divides("the hidden size of the shared experts", "tensor", _shared_width(q), q.tensor)
        ),
    ),
    Rule(
        "seq_len",
        lambda q: q.seq_len % _sequence_pieces(q) != 0,
        lambda q: (
            "every rank must have equally many tokens of a sequence, two pieces with context ranks, of which tensor "
            f"ranks split each with sequence parallelism: got seq_len={q.seq_len} for context {q.context} and tensor "
            f"{q.tensor}; try {-(-q.seq_len // _sequence_pieces(q)) * _sequence_pieces(q)}"
            + ", or sequence_parallel=False"
            * bool(q.sequence_parallel and q.tensor > 1)
        ),
    ),
    Rule(
        "batch",
        lambda q: q.batch % (q.data * q.micro_batch) != 0,
        lambda q: _divides("batch", "data * micro_batch", q.batch, q.data * q.micro_batch),
    ),
    Rule(
        "kv_heads",
        lambda q: (q.model.kv_heads % q.tensor != 0) & (q.tensor % q.model.kv_heads != 0),
        lambda q: (
            f"tensor must divide num_kv_heads, or be a multiple of it: got {q.tensor} and {q.model.kv_heads}; "
            f"try {gcd(q.tensor, q.model.kv_heads)}"
        ),
    ),
    Rule(
        "layers",
        # Embedding and head may be pieces of their own (126 layers in 128 pieces: Llama 3 405B).
        lambda q: q.pipeline * q.chunks > q.model.num_layers + 2 * (q.pipeline > 1),
        lambda q: (
            f"a pipeline needs a layer for each piece: got pipeline * chunks = {q.pipeline * q.chunks} and "
            f"{q.model.num_layers} layers; try {q.model.num_layers} or fewer"
        ),
    ),
    Rule(
        "mixture",
        lambda q: ((q.expert > 1) | (q.expert_tensor != q.tensor)) & (q.model.experts is None),
        lambda q: (
            f"expert > 1 needs a mixture of experts: got expert={q.expert} and {q.model.name!r}; leave it out"
            if q.expert > 1
            else f"expert_tensor needs a mixture of experts: got {q.expert_tensor} and {q.model.name!r}; leave it out"
        ),
    ),
    Rule(
        "experts",
        lambda q: _num_experts(q) % q.expert != 0,
        lambda q: _divides("num_experts", "expert", _num_experts(q), q.expert),
    ),
    Rule(
        "one piece",
        lambda q: (q.chunks > 1) & (q.schedule not in (*CHUNKED, *V_SHAPED)),
        lambda q: f"schedule {q.schedule!r} has one piece on each stage: got chunks={q.chunks}; try interleaved",
    ),
    Rule(
        "two pieces",
        lambda q: (q.schedule in V_SHAPED) & (q.pipeline > 1) & (q.chunks != 2),
        lambda q: f"schedule {q.schedule!r} has two pieces on each stage: got chunks={q.chunks}; give chunks=2",
    ),
    Rule(
        "rounds",
        lambda q: (q.schedule == "interleaved") & (q.pipeline > 1) & (_num_microbatches(q) % q.pipeline != 0),
        lambda q: _divides("the number of micro-batches", "pipeline", _num_microbatches(q), q.pipeline),
    ),
    Rule(
        "torus",
        lambda q: _num_nodes(q) > _torus_nodes(q),
        lambda q: (
            f"a torus of shape {q.cluster.topology.shape} has {_torus_nodes(q)} nodes: the plan needs {_num_nodes(q)}; "
            "give a larger shape or fewer ranks"
        ),
    ),
    Rule(
        "own tokens",
        lambda q: (q.expert_tensor != q.tensor) & (q.tensor > 1) & (not q.sequence_parallel),
        _refusal,
    ),
    Rule(
        "expert's width",
        lambda q: _expert_width(q) % q.expert_tensor != 0,
        lambda q: _divides("the hidden size of an expert", "expert_tensor", _expert_width(q), q.expert_tensor),
    ),
    Rule(
        "pairs",
        lambda q: (q.schedule == "dualpipe-v") & (q.pipeline > 1) & (_num_microbatches(q) < 2 * q.pipeline),
        lambda q: (
            f"schedule 'dualpipe-v' needs 2 * pipeline micro-batches or more: got {_num_microbatches(q)} and "
            f"pipeline={q.pipeline}; try batch={2 * q.pipeline * q.data * q.micro_batch}, or another schedule"
        ),
    ),
    Rule(
        "ZeRO-2",
        lambda q: q.is_eager and q.zero_stage == 2,
        lambda q: (
            "torch splits optimizer states (ZeRO-1, ZeroRedundancyOptimizer) or all (ZeRO-3, fully_shard): got "
            f"zero_stage={q.zero_stage} with a stack of torch's own; try 1, or 3 with reshard_after_forward=False"
        ),
    ),
)
