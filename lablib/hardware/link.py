"""Links in the alpha-beta model.

Sending a message of S bytes over a link takes

    T(S) = alpha + S * beta        alpha = latency_s, beta = 1 / bandwidth_bytes_per_s

Simplified: one alpha for every protocol, and a bandwidth that does not depend on the size of the message.
"""

from dataclasses import dataclass

from lablib.hardware.checks import Seconds, Size, check_size
from lablib.signature import PositiveFraction, check_fields


@dataclass(frozen=True)
class Link:
    """A wire between two ends."""

    name: str  # e.g. "NVLink 4"
    latency_s: Seconds  # alpha, seconds before the first byte arrives: of one hop, without the call
    bandwidth_bytes_per_s: Size  # 1 / beta, bytes per second in one direction for one device
    source: str = ""
    # share of the bandwidth that collectives of many ranks reach, if one message has all of it; for networks that were
    # measured so. Used by the planner only.
    collective_share: PositiveFraction = 1.0
    # seconds before the first byte of an all-reduce with sums in this link's switches (NVLink SHARP:
    # lablib/cost/nvls.py); None: they cannot add
    nvls_latency_s: Seconds | None = None

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    def transfer_s(self, size_bytes: float) -> float:
        """Seconds for one message: alpha + size * beta. Raises ValueError for a size that is no number."""
        check_size(size_bytes)
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s
