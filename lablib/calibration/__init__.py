"""Calibration: measure this machine, in the figures of the cost model.

cases.py         small programs: what is timed, and what the model charges for it
grid.py          at which sizes
timing.py        how each rank times them, all ranks at once
robust.py        fits that a few bad measurements do not move
fit_device.py    operations -> the figures of a device
fit_network.py   communication -> latency, bandwidth, fixed time of a call
kernel_times.py  times of kernels, on GPUs
catalogue_links.py  links of the catalogue, for a machine with one GPU
calibrate.py     all of it: a cluster with a profile
saved_profile.py the profile that is there, or a quick one
program_size.py  batches that keep the device busy
"""

from lablib.calibration.calibrate import calibrate
from lablib.calibration.program_size import batch_for
from lablib.calibration.saved_profile import this_machine

__all__ = ["batch_for", "calibrate", "this_machine"]
