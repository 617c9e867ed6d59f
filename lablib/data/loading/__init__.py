"""Loaders: how batches reach a device, and why the device waits.

loader             settings of a loader: workers, prefetch, copies; times of loads and steps with jitter
loader_timeline    a training loop fed by a loader, event by event
loaded_run         when each batch was where, and the cause of each gap
loader_ranks       loaders as ranks of a torch.distributed program
measured_loop      the same loop with torch's DataLoader on this machine
queueing           waiting time in closed form
smallest_prefetch  the smallest prefetch that hides a given jitter
dead_worker        a worker that dies
"""
