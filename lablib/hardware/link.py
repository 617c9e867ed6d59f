"""Links in the alpha-beta model.

Sending a message of S bytes over a link takes

    T(S) = alpha + S * beta        alpha = latency_s, beta = 1 / bandwidth_bytes_per_s

Simplified: one alpha for every protocol, and a bandwidth that does not depend on the size of the message.
"""

from dataclasses import dataclass

from lablib.hardware.checks import check_numbers, check_size, check_times
from lablib.signature import check_fields


@dataclass(frozen=True)
class Link:
    """A wire between two ends.

    Attributes:
        name: e.g. "NVLink 4".
        latency_s: alpha, seconds before the first byte arrives: of one hop, without the call.
        bandwidth_bytes_per_s: 1 / beta, bytes per second in one direction for one device.
        source: source of the figures.
        collective_share: share of the bandwidth that collectives of many ranks reach, if one message has all of it; for
            networks that were measured so. Used by the planner only.
        nvls_latency_s: seconds before the first byte of an all-reduce with sums in this link's switches (NVLink SHARP:
            lablib/cost/nvls.py); None: they cannot add.
    """

    name: str
    latency_s: float
    bandwidth_bytes_per_s: float
    source: str = ""
    collective_share: float = 1.0
    nvls_latency_s: float | None = None

    def __post_init__(self) -> None:
        whose = f"link {self.name!r}"
        given = {"latency_s": self.latency_s, "nvls_latency_s": self.nvls_latency_s}
        check_times(whose, {name: time_s for name, time_s in given.items() if time_s is not None})
        shares = {name: getattr(self, name) for name in ("bandwidth_bytes_per_s", "collective_share")}
        check_numbers(whose, shares)
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError(
                f"bandwidth_bytes_per_s must be positive: got {self.bandwidth_bytes_per_s} for link {self.name!r}"
            )

        if not 0 < self.collective_share <= 1:
            raise ValueError(
                f"collective_share is a share in (0, 1]: got {self.collective_share} for link {self.name!r}"
            )
        check_fields(self)

    def transfer_s(self, size_bytes: float) -> float:
        """Seconds for one message: alpha + size * beta. Raises ValueError for a size that is no number."""
        check_size(size_bytes)
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s
