"""Make a plain model tensor parallel by a plan (`tensor/plan.py`), without changing the model file.

    model = parallelize(GPT(config), plan=GPT_SEQUENCE_PLAN)
    loss = vocabulary_parallel_loss(model(tokens), targets, config.vocab_size)
    loss.backward()                    # gradients as on one device, as shards or whole (`tensor/state.py`)

Phases (the code has the same headings):
    1. match      every pattern to its modules; check the plan before any change
    2. broadcast  the model, so that all ranks cut the same one
    3. replace    each layer by its shard; shared parameters stay shared

Cost for n ranks, P parameters in matrices of w bytes, and R others:
    peak bytes  (P / n + R) w of weights afterwards; P w before the cut
    sent bytes  the model once, broadcast
Shapes: as in `tensor/linear.py`.
Source: torch.distributed.tensor.parallel.parallelize_module (torch 2.13, documentation), which keeps the layers and
makes their parameters DTensors; here the layers are replaced.
Simplified: the whole model exists on every rank before it is cut; one group; hooks of a replaced layer are lost.
"""

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lablib.parallel.data.naive import broadcast_module
from lablib.parallel.tensor import plan as plans
from lablib.parallel.tensor.linear import ColumnLinear, RowLinear
from lablib.parallel.tensor.overlap import OverlappedColumnLinear
from lablib.parallel.tensor.regions import Entrance, Group
from lablib.parallel.tensor.sequence_parallel import NormOnShards, PositionsOnShards
from lablib.parallel.tensor.vocabulary import VocabularyEmbedding, VocabularyHead
from lablib.signature import check_type


def parallelize(
    model: nn.Module, mesh: DeviceMesh | Group = None, plan: plans.Plan = plans.GPT_PLAN, *, broadcasts: bool = True
) -> nn.Module:
    """Cut the model over the ranks, in place, and return it. Every rank then takes the whole batch.

    Communicates: broadcasts the model from the group's first rank. Make the optimizer afterwards.

    Arguments:
        model: whole, on this rank's device.
        mesh: of one axis, or a process group, over which weights are cut; None: all ranks.
        plan: pattern of names -> cut of the modules.
        broadcasts: False if all ranks already hold the same model.

    Raises ValueError: as in `check_plan`, or a mesh of several axes.
    """
    group = _group_of(mesh)
    # ---- 1. match ----
    matches = plans.check_plan(model, plan, dist.get_world_size(group))
    # ---- 2. broadcast ----
    if broadcasts:
        broadcast_module(model, group)
    # ---- 3. replace ----
    shared: dict[nn.Parameter, nn.Parameter] = {}
    entrances: dict[nn.Module, Entrance] = {}
    for match in matches:
        if isinstance(match.style, plans.SharedInput | plans.OfExperts):
            continue
        new = _made(match, group, entrances).train(match.module.training)
        for key, param in match.module.named_parameters(recurse=False):
            setattr(new, key, shared.setdefault(param, getattr(new, key)))
        for name in match.names:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, new)
    return model


def _made(match: plans.Match, group: Group, entrances: dict[nn.Module, Entrance]) -> nn.Module:
    module, style = match.module, match.style
    if isinstance(style, plans.OnTokens):
        is_norm = not isinstance(module, nn.Embedding)
        return NormOnShards(module, group) if is_norm else PositionsOnShards(module, group)  # pyright: ignore
    if isinstance(style, plans.Vocabulary):
        pads = style.uneven == "pad"
        if isinstance(module, nn.Embedding):
            return VocabularyEmbedding(module, group, style.region, pads=pads)
        return VocabularyHead(module, group, style.region, gathers=style.gathers, pads=pads)  # pyright: ignore
    assert isinstance(module, nn.Linear) and isinstance(style, plans.Column | plans.Row)
    features = module.out_features if isinstance(style, plans.Column) else module.in_features
    multiple_of = 1 if style.units is None else features // getattr(match.owner, style.units)
    if isinstance(style, plans.Row):
        return RowLinear(module, group, style.region, multiple_of=multiple_of)
    kind = OverlappedColumnLinear if style.overlaps else ColumnLinear
    region = style.region
    if match.sharing is not None:
        if match.sharing not in entrances:
            entrances[match.sharing] = Entrance(region)
            match.sharing.register_forward_hook(entrances[match.sharing].forget, always_call=True)
        region = entrances[match.sharing]
    return kind(module, group, region, gathers=style.gathers, multiple_of=multiple_of)


def _group_of(mesh: DeviceMesh | Group) -> Group:
    check_type("parallelize: mesh", mesh, DeviceMesh | dist.ProcessGroup | None)
    if not isinstance(mesh, DeviceMesh):
        return mesh
    if mesh.ndim != 1:
        raise ValueError(f"parallelize cuts over one axis: got a mesh of {mesh.ndim}; give mesh['tensor'] of it.")
    return mesh.get_group()
