"""Figures of a run.

timeline         one lane per rank and stream, one bar per span
lanes, bars      the lanes, and the bars of many spans
memory           bytes over time by category
allocator        reserved and allocated bytes of the caching allocator
ranks            peak memory and bytes sent of each rank
step_memory      the peak of one step, and the step itself
traffic_matrix   bytes between ranks
roofline         speed of each operation, and the limit of the device
waits            a deadlock
metrics          metrics of a training run, with thresholds and alerts
reconcile        predicted next to measured
"""
