"""Calibration: measure this machine, as figures of the cost model.

cases.py         benchmark programs, and the model's price of each
grid.py          sizes of the benchmarks
timing.py        timing on each rank, all ranks at once
robust.py        fits that are robust to outliers
fit_device.py    operations -> the figures of a device
fit_network.py   communication -> latency, bandwidth, fixed time of a call
kernel_times.py  times of kernels, on GPUs
catalogue_links.py  links of the catalogue, for a machine with one GPU
calibrate.py     all of it: a cluster with a profile
saved_profile.py the saved profile, or a quick one
program_size.py  batches that keep the device busy
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
