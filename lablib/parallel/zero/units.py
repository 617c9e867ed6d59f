"""The units of ZeRO stage 3: parameters that are gathered and freed together, and hooks in the graph.

While its unit is gathered, a parameter of the module is a view of the unit's flat buffer; while it is freed, the piece
on this rank's shard, so that `module.parameters()` returns existing numbers. The two are swapped in the module, and the
buffer's memory is freed and allocated again (`resize_`): tensors saved by autograd stay views of the same buffer, and
have their values again in backward.

Autograd has no hook for the end of a module's backward. An identity around its inputs has a backward that runs then:
`mark_inputs`.

Cost: see `zero/stage3.py`.
Shapes: a full buffer is [N], N the padded elements of a unit; a shard is [N / n].
Source: Zhao et al., "PyTorch FSDP", VLDB 2023, arXiv 2304.11277, sections 3.2 and 4.2.
Simplified: a parameter of several units belongs to the root, so it is never freed between them.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.data.overlapped import Handle
from lablib.parallel.zero.shards import AllGather, FlatUnit, require_same_training
from lablib.torch_compat import tree_leaves, tree_map_only

Owners = dict[nn.Parameter, list[tuple[nn.Module, str]]]  # parameter -> its modules, and its name in each


class Use:
    """One use of a unit in forward; `has_end`: the end of its backward is known, as an input has a gradient."""

    def __init__(self, unit: "GatheredUnit"):
        self.unit, self.has_end = unit, False


class GatheredUnit:
    """The parameters of a submodule, gathered and freed together."""

    def __init__(self, owners: Owners, names: dict[nn.Parameter, str], group: Any, options: dict[str, Any]):
        # the flat units of its trainable parameters, if any, and then of its frozen ones, if any
        self.flats: list[FlatUnit] = []
        # the full trainable parameters for autograd; without memory while freed
        self.trainable: list[nn.Parameter] = []
        self.num_params = len(owners)
        self.arrived: set[Tensor] = set()  # parameters with a gradient from this backward, until it is reduced
        self.open_uses: list[Use] = []
        self.active: set[Use] = set()  # uses with a running backward
        self._slots: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter, str]] = []
        self._gathers: list[Handle] | None = None  # in flight
        self._is_gathered = True
        for requires_grad in (True, False):
            params = [param for param in owners if param.requires_grad == requires_grad]
            if params:
                flat = FlatUnit([(names[param], param) for param in params], group, in_place=False, **options)
                self.flats.append(flat)
                self._replace(flat, params, owners)
        self.is_complete = not self.trainable  # all gradients of this backward have arrived
        self.free()

    def _replace(self, flat: FlatUnit, params: list[nn.Parameter], owners: Owners) -> None:
        """Make two parameters for each of the module's: the full one, and this rank's piece."""
        pieces = {piece.name: piece for piece in flat.layout.pieces(dist.get_rank(flat.group))}
        for param, name, view in zip(params, flat.layout.names, flat.layout.views(flat.full), strict=True):
            full = nn.Parameter(view.data, requires_grad=param.requires_grad)
            start, numel = (pieces[name].start_in_shard, pieces[name].numel) if name in pieces else (0, 0)
            kept = nn.Parameter(flat.shard.data[start : start + numel], requires_grad=param.requires_grad)
            self._slots += [(owner, attribute, full, kept, name) for owner, attribute in owners[param]]
            if full.requires_grad:
                self.trainable.append(full)
            param.data = full.data  # whoever still has the module's original parameter holds no memory by it
        flat.params = ()  # free the module's original parameters

    def start_gather(self, all_gather: AllGather) -> None:
        """Allocate the buffers, and start to gather; no effect if already started."""
        if self._is_gathered or self._gathers is not None:
            return
        for flat in self.flats:
            flat.full.untyped_storage().resize_(flat.full.nbytes)
        self._gathers = [all_gather(flat.shard.detach(), flat.full, flat.group) for flat in self.flats]

    def gather(self, all_gather: AllGather) -> None:
        """Gather, and put the parameters into the module."""
        self.start_gather(all_gather)
        for handle in self._gathers or ():
            handle.wait()
        if not self._is_gathered:
            self._show(is_full=True)
        self._gathers = None

    def free(self) -> None:
        """Put the pieces into the module, and free the buffers."""
        for handle in self._gathers or ():
            handle.wait()  # prefetched, and not used
        if self._is_gathered:
            self._show(is_full=False)
        self._gathers = None
        for flat in self.flats:
            flat.full.untyped_storage().resize_(0)

    def _show(self, is_full: bool) -> None:
        self._is_gathered = is_full
        for owner, attribute, full, kept, name in self._slots:
            if is_full:
                require_same_training(name, kept, full.requires_grad)
            setattr(owner, attribute, full if is_full else kept)

    def missing(self) -> list[str]:
        """Names of the trainable parameters without a gradient so far."""
        names = self.flats[0].layout.names
        return [name for name, param in zip(names, self.trainable, strict=True) if param not in self.arrived]

    def forget_backward(self) -> None:
        self.arrived.clear()
        self.active.clear()
        self.open_uses.clear()
        self.is_complete = not self.trainable


# ---- which parameter belongs to which unit ----


def default_units(module: nn.Module) -> list[nn.Module]:
    """The members of every `nn.ModuleList` and `nn.Sequential`, but not those within members; they have parameters."""
    found: list[nn.Module] = []
    for child in module.children() if not isinstance(module, (nn.ModuleList, nn.Sequential)) else [module]:
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            found += [member for member in child.children() if any(True for _ in member.parameters())]
        else:
            found += default_units(child)
    return list(dict.fromkeys(found))


def parameters_by_unit(module: nn.Module, units: Sequence[nn.Module]) -> dict[nn.Module, Owners]:
    """The parameters of the root and each unit, without those of nested or several units. ValueError: no submodule."""
    inside = set(module.modules()) - {module}
    strangers = [unit for unit in units if unit not in inside]
    if strangers:
        raise ValueError(f"units must be submodules of the module: got {type(strangers[0]).__name__}, which is not.")
    users: dict[nn.Parameter, set[nn.Module]] = {}
    places: dict[nn.Parameter, dict[tuple[nn.Module, str], None]] = {}

    # A stack, not recursion: a function that calls itself is a reference cycle, and would keep the whole model alive.
    stack = [(module, module)]
    while stack:
        owner, unit = stack.pop()
        unit = owner if owner in units else unit
        for name, param in owner.named_parameters(recurse=False, remove_duplicate=False):
            users.setdefault(param, set()).add(unit)
            places.setdefault(param, {})[owner, name] = None  # once, even if a shared module occurs twice
        stack += [(child, unit) for child in reversed(list(owner.children()))]
    found: dict[nn.Module, Owners] = {unit: {} for unit in (module, *units)}
    for param, using in users.items():
        found[next(iter(using)) if len(using) == 1 else module][param] = list(places[param])
    return found


# ---- marks in the graph ----


class _Inputs(torch.autograd.Function):
    """The identity. Its backward runs after the backward of everything computed from its results."""

    @staticmethod
    def forward(ctx: Any, on_done: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.on_done = on_done
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        ctx.on_done()
        return None, *grads


def mark_inputs(args: Any, kwargs: Any, on_done: Any, use: Use) -> tuple[Any, Any]:
    """Call `on_done` at the end of the backward of this use; impossible if no input has a gradient."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.requires_grad]
    if not tensors:
        return args, kwargs
    use.has_end = True
    marked = dict(zip(map(id, tensors), _Inputs.apply(on_done, *tensors), strict=True))  # pyright: ignore
    return tree_map_only(Tensor, lambda x: marked.get(id(x), x), (args, kwargs))
