"""Default software stack: the current one for a plan, the one of its date for a published run.

              a plan, or Megatron             any other program
    to 2021   megatron-2021                   megatron-2021
    2022      megatron-2022                   megatron-2022
    2023      megatron-2023                   fsdp                  flash attention came in the middle of 2022, and is
    2024      megatron-core                   torch-compile-2024    in the usual programs since 2023
    today     megatron-core                   torch-compile

Accelerators that are no GPUs have xla. GPUs before Ampere have no flash attention and keep megatron-2022. The result
names the stack and the reason.

Source: Dao et al., FlashAttention, 2022, arXiv 2205.14135 (and its repository: Ampere and newer); the generations
themselves: stack.py. Simplified: one generation per year, for early and late adopters.
"""

from types import MappingProxyType
from typing import NamedTuple

from lablib.hardware.device import Device

NAMED = "as named"
_OLD = MappingProxyType({2021: "megatron-2021", 2022: "megatron-2022"})
_FLASH = MappingProxyType({2023: "megatron-2023"})
_OTHERS = MappingProxyType({2023: "fsdp", 2024: "torch-compile-2024"})


class Software(NamedTuple):
    """A generation of software, and the reason for it: "as named", or "usual today: none was named"."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def default_stack(device: Device, year: int | None = None, is_megatron: bool = True) -> Software:
    """The usual software on a device in a year (None: today).

    `is_megatron`: whether the program is Megatron, or a plan for the best software; False: any other program.
    """
    why = "usual today: none was named" if year is None else f"usual in {year}: none was named"
    if not device.is_gpu:
        return Software("xla", why)
    if year is not None and year <= max(_OLD):
        return Software(_OLD[max(year, min(_OLD))], why)
    if not device.has_flash_attention:
        return Software(_OLD[max(_OLD)], f"{why}, and {device.name} has no flash attention")
    if is_megatron:
        return Software(_FLASH.get(year or 0, "megatron-core"), why)
    return Software(_OTHERS.get(year or 0, "torch-compile"), why)
