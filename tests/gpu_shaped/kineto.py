"""Event streams of a CUDA profile, made without a GPU: the events that torch's kineto results hold.

No GPU recorded them: they are built from what torch and libkineto say in their sources. Each `Raw` answers what
`_KinetoEvent` of torch 2.13 answers. A `Recording` builds a stream as the libraries do (libkineto's
CuptiActivityProfiler.cpp links CUDA's activities to operations):

    an operation of torch    CPU, its own number as `correlation_id`, linked to none
    a call of CUDA           CPU, CUDA's number as `correlation_id`, linked to the innermost operation around it
    a kernel                 CUDA, the number of the call that launched it, linked to the same operation
    a label                  CPU, scope 7; never what a kernel is linked to (libkineto keeps a map of its own for them)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lablib.torch_compat import ProfiledDevice

MAIN, BACKWARD = 100, 101  # system ids of threads
STREAM, COMM_STREAM = 7, 20
LAUNCH = "cudaLaunchKernel"


@dataclass
class Raw:
    """One event of kineto's results."""

    label: str
    start: int
    end: int
    thread: int
    number: int = 0
    linked: int = 0
    scope_number: int = 0
    device: object = ProfiledDevice.CPU
    annotation: bool = False
    flop_count: int = 0

    def name(self):
        return self.label

    def start_ns(self):
        return self.start

    def duration_ns(self):
        return self.end - self.start

    def device_resource_id(self):
        return self.thread

    def device_type(self):
        return self.device

    def correlation_id(self):
        return self.number

    def linked_correlation_id(self):
        return self.linked

    def is_user_annotation(self):
        return self.annotation

    def scope(self):
        return self.scope_number

    def flops(self):
        return self.flop_count


@dataclass
class Recording:
    """A profile being made. The host's time moves with everything it does; the GPU's streams run behind it."""

    now: int = 1_000_000
    raws: list[Raw] = field(default_factory=list)
    thread: int = MAIN
    stream_free: dict[int, int] = field(default_factory=dict)
    numbers: int = 0  # torch's
    correlations: int = 0  # CUDA's: small as torch's, so that a mix-up shows
    around: list[int] = field(default_factory=list)

    def events(self):
        """What `kineto_results.events()` gives."""
        return self.raws

    @contextmanager
    def operation(self, name: str, scope: int = 0, flops: int = 0) -> Iterator[Raw]:
        """An operation of torch, a function of autograd (scope 1), or a label (scope 7)."""
        self.numbers += 1
        raw = Raw(name, self.now, self.now, self.thread, self.numbers, 0, scope, flop_count=flops)
        raw.annotation = scope == 7
        self.raws.append(raw)
        self.now += 100
        if scope != 7:
            self.around.append(raw.number)
        yield raw
        if scope != 7:
            self.around.pop()
        self.now += 100
        raw.end = self.now

    @contextmanager
    def on_thread(self, thread: int) -> Iterator[None]:
        """What another thread does while this one waits."""
        before, self.thread = self.thread, thread
        around, self.around = self.around, []
        yield
        self.thread, self.around = before, around

    def launch(
        self, kernel: str, takes: int, stream: int = STREAM, delay: int = 0, call: str = LAUNCH, is_lost: bool = False
    ) -> Raw:
        """A call that starts a kernel, which runs when its stream is free. `delay`: how long it waits for others."""
        self.correlations += 1
        linked = self.around[-1] if self.around else 0
        self.raws.append(Raw(call, self.now, self.now + 50, self.thread, self.correlations, linked))
        start = max(self.now + 60, self.stream_free.get(stream, 0)) + delay
        raw = Raw(kernel, start, start + takes, stream, self.correlations, linked, device=ProfiledDevice.CUDA)
        self.stream_free[stream] = raw.end
        if not is_lost:
            self.raws.append(raw)
        self.now += 80
        return raw

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.correlations += 1
        end = max([self.now + 10, *self.stream_free.values()])
        self.raws.append(Raw("cudaDeviceSynchronize", self.now, end, self.thread, self.correlations))
        self.now = end
