"""Rules for a possible split, by number: for one plan, or for a million at once.

A rule is a test on numbers or arrays, and a message. `predict` raises the message of the first broken rule;
`predict_many` keeps its number for each plan, and `search` counts them.

     0 expert       times expert_tensor divides          7 kv_heads    tensor divides them, or is a multiple
                    tensor * context * data
     1 replicas     divide data                          8 layers      one for each piece of the pipeline
     2 one stage    has one piece                        9 mixture     expert > 1, and an expert_tensor, need one
     3 heads        tensor divides them                 10 experts     expert divides them
     4 hidden size  tensor divides it, of MLPs and of   11 one piece   on each stage, of schedules without chunks
                    shared experts, if there are any
     5 seq_len      pieces of equal length divide it    12 two pieces  on each stage, of V-shaped schedules
     6 batch        data * micro_batch divides it       13 rounds      interleaved: pipeline divides micro-batches
    15 own tokens   expert_tensor other than tensor     14 torus       has so many nodes
                    needs sequence parallelism          16 expert's width  expert_tensor divides it
    17 pairs        dualpipe-v: 2 micro-batches         18 ZeRO-2      not with eager stacks: torch has none
                    per stage, or more                  19 offload     of parameters: with ZeRO-3, not with eager stacks
                                                        20 window      not in torch's ring of context ranks
"""

from collections.abc import Callable
from math import gcd, prod
from typing import NamedTuple

from lablib.cost.arrays import Numbers
from lablib.hardware.topology import Torus
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.parallel import Parallel
from lablib.plan.setup import Setup

CHUNKED = ("interleaved", "breadth-first")


class Rule(NamedTuple):
    """One rule: its name, the test for broken plans (a bool, or an array of them), and the message for one plan."""

    name: str
    is_broken: Callable[[Setup], Numbers]
    sentence: Callable[[Setup], str]


def obstacles(setup: Setup) -> list[str]:
    """Reasons that make one plan impossible, each with a remedy; empty if it is possible."""
    return [rule.sentence(setup) for rule in RULES if rule.is_broken(setup)]


def _divides(what: str, axis: str, size: int, ranks: int) -> str:
    return f"{axis} must divide {what}: got {ranks} and {size}; try {gcd(size, ranks)}"


def _refusal(setup: Setup) -> str:
    """The message of `Parallel` itself."""
    try:
        Parallel(
            *(setup.data, setup.tensor, setup.pipeline, setup.context, setup.expert),
            *(setup.chunks, setup.sequence_parallel),
            replicas=setup.replicas,
            expert_tensor=None if setup.expert_tensor == setup.tensor else setup.expert_tensor,
        )
    except ValueError as error:
        return str(error)
    raise AssertionError(f"a possible split was refused: {setup}")


def _num_nodes(setup: Setup) -> Numbers:
    return -(-setup.num_ranks // setup.machine.cluster.devices_per_node)


def _torus_nodes(setup: Setup) -> int | float:
    network = setup.machine.cluster.topology
    return prod(network.shape) if isinstance(network, Torus) else float("inf")


def _num_experts(setup: Setup) -> int:
    return setup.model.experts.num_experts if setup.model.experts else 0


def _sequence_pieces(setup: Setup) -> Numbers:
    """Pieces of a sequence: a context rank has one from its head and one from its tail, for equal work."""
    return (1 + (setup.context > 1)) * setup.context * (setup.tensor if setup.sequence_parallel else 1)


def _dense_width(setup: Setup) -> int:
    return setup.model.hidden_size if setup.model.num_expert_layers < setup.model.num_layers else 0


def _shared_width(setup: Setup) -> int:
    return setup.model.experts.num_shared * setup.model.experts.d_ff if setup.model.experts else 0


def _window(setup: Setup) -> float:
    """Tokens that a query sees at most."""
    return setup.model.window.tokens if setup.model.window and setup.model.num_window_layers else float("inf")


def _expert_width(setup: Setup) -> int:
    return setup.model.experts.d_ff if setup.model.experts else 0


RULES = (
    Rule(
        "expert",
        lambda setup: setup.tensor * setup.context * setup.data % (setup.expert * setup.expert_tensor) != 0,
        _refusal,
    ),
    Rule("replicas", lambda setup: setup.data % setup.replicas != 0, _refusal),
    Rule("one stage", lambda setup: (setup.chunks > 1) & (setup.pipeline == 1), _refusal),
    Rule(
        "heads",
        lambda setup: setup.model.num_heads % setup.tensor != 0,
        lambda setup: _divides("num_heads", "tensor", setup.model.num_heads, setup.tensor),
    ),
    Rule(
        "hidden size",
        lambda setup: (_dense_width(setup) % setup.tensor != 0) | (_shared_width(setup) % setup.tensor != 0),
        lambda setup: (
            _divides("the hidden size of the MLP", "tensor", _dense_width(setup), setup.tensor)
            if _dense_width(setup) % setup.tensor
            else _divides("the hidden size of the shared experts", "tensor", _shared_width(setup), setup.tensor)
        ),
    ),
    Rule(
        "seq_len",
        lambda setup: setup.seq_len % _sequence_pieces(setup) != 0,
        lambda setup: (
            "every rank must have equally many tokens of a sequence, two pieces with context ranks, of which tensor "
            f"ranks split each with sequence parallelism: got seq_len={setup.seq_len} for context {setup.context} "
            f"and tensor {setup.tensor}; try {-(-setup.seq_len // _sequence_pieces(setup)) * _sequence_pieces(setup)}"
            + ", or sequence_parallel=False"
            * bool(setup.sequence_parallel and setup.tensor > 1)
        ),
    ),
    Rule(
        "batch",
        lambda setup: setup.batch % (setup.data * setup.micro_batch) != 0,
        lambda setup: _divides("batch", "data * micro_batch", setup.batch, setup.data * setup.micro_batch),
    ),
    Rule(
        "kv_heads",
        lambda setup: (setup.model.kv_heads % setup.tensor != 0) & (setup.tensor % setup.model.kv_heads != 0),
        lambda setup: (
            f"tensor must divide num_kv_heads, or be a multiple of it: got {setup.tensor} and {setup.model.kv_heads}; "
            f"try {gcd(setup.tensor, setup.model.kv_heads)}"
        ),
    ),
    Rule(
        "layers",
        # Embedding and head may be separate pieces (126 layers in 128 pieces: Llama 3 405B).
        lambda setup: setup.pipeline * setup.chunks > setup.model.num_layers + 2 * (setup.pipeline > 1),
        lambda setup: (
            f"a pipeline needs a layer for each piece: got pipeline * chunks = {setup.pipeline * setup.chunks} and "
            f"{setup.model.num_layers} layers; try {setup.model.num_layers} or fewer"
        ),
    ),
    Rule(
        "mixture",
        lambda setup: ((setup.expert > 1) | (setup.expert_tensor != setup.tensor)) & (setup.model.experts is None),
        lambda setup: (
            f"expert > 1 needs a mixture of experts: got expert={setup.expert} and {setup.model.name!r}; leave it out"
            if setup.expert > 1
            else f"expert_tensor needs a mixture of experts: got {setup.expert_tensor} and {setup.model.name!r}; "
            "leave it out"
        ),
    ),
    Rule(
        "experts",
        lambda setup: _num_experts(setup) % setup.expert != 0,
        lambda setup: _divides("num_experts", "expert", _num_experts(setup), setup.expert),
    ),
    Rule(
        "one piece",
        lambda setup: (setup.chunks > 1) & (setup.schedule not in (*CHUNKED, *V_SHAPED)),
        lambda setup: (
            f"schedule {setup.schedule!r} has one piece on each stage: got chunks={setup.chunks}; try interleaved"
        ),
    ),
    Rule(
        "two pieces",
        lambda setup: (setup.schedule in V_SHAPED) & (setup.pipeline > 1) & (setup.chunks != 2),
        lambda setup: (
            f"schedule {setup.schedule!r} has two pieces on each stage: got chunks={setup.chunks}; give chunks=2"
        ),
    ),
    Rule(
        "rounds",
        lambda setup: (
            (setup.schedule == "interleaved") & (setup.pipeline > 1) & (setup.num_microbatches % setup.pipeline != 0)
        ),
        lambda setup: _divides("the number of micro-batches", "pipeline", setup.num_microbatches, setup.pipeline),
    ),
    Rule(
        "torus",
        lambda setup: _num_nodes(setup) > _torus_nodes(setup),
        lambda setup: (
            f"a torus of shape {setup.machine.cluster.topology.shape} has {_torus_nodes(setup)} nodes: the plan "
            f"needs {_num_nodes(setup)}; give a larger shape or fewer ranks"
        ),
    ),
    Rule(
        "own tokens",
        lambda setup: (setup.expert_tensor != setup.tensor) & (setup.tensor > 1) & (not setup.sequence_parallel),
        _refusal,
    ),
    Rule(
        "expert's width",
        lambda setup: _expert_width(setup) % setup.expert_tensor != 0,
        lambda setup: _divides(
            "the hidden size of an expert", "expert_tensor", _expert_width(setup), setup.expert_tensor
        ),
    ),
    Rule(
        "pairs",
        lambda setup: (
            (setup.schedule == "dualpipe-v") & (setup.pipeline > 1) & (setup.num_microbatches < 2 * setup.pipeline)
        ),
        lambda setup: (
            f"schedule 'dualpipe-v' needs 2 * pipeline micro-batches or more: got {setup.num_microbatches} and "
            f"pipeline={setup.pipeline}; try batch={2 * setup.pipeline * setup.data * setup.micro_batch}, or another "
            "schedule"
        ),
    ),
    Rule(
        "ZeRO-2",
        lambda setup: setup.is_eager and setup.zero_stage == 2,
        lambda setup: (
            "torch splits optimizer states (ZeRO-1, ZeroRedundancyOptimizer) or all (ZeRO-3, fully_shard): got "
            f"zero_stage={setup.zero_stage} with a stack of torch's own; try 1, or 3 with reshard_after_forward=False"
        ),
    ),
    Rule(
        "offload",
        lambda setup: setup.has_host_parameters and (setup.zero_stage < 3 or setup.is_eager),
        lambda setup: (
            'offload of "parameters" is that of ZeRO-3\'s shards, with a stack that is not eager: got '
            f"zero_stage={setup.zero_stage} with stack {setup.machine.stack.name!r}; try zero_stage=3 and "
            "stack='torch-compile'"
        ),
    ),
    Rule(
        "window",
        lambda setup: setup.is_eager & (setup.context > 1) & (setup.seq_len > _window(setup)),
        lambda setup: (
            f"torch's ring attention has no windows: got context={setup.context} with a window of {_window(setup):,} "
            f"tokens in {setup.model.name!r}; try context=1, or stack='megatron-core'"
        ),
    ),
)
