"""Processes: forks, exit codes, per-process state, and the host machine.

settings       per-process settings of Python and torch, which each rank owns
rank_state     seeds and threads of a rank
arguments      tensors in a program's arguments, moved to the rank's GPU
tensor_pickle  a dense tensor as parts of a pickle
default_device the device on which a program's tensors are created
torchrun       the environment variables of torchrun
fork_server    a server that forks worker processes
lifetime       end of a process: with its parent, by an exit code
group_calls    one rank's call of `new_group`, for comparison over ranks
whose_code     classify a source file: user code, installed package, or standard library
thread_frames  the innermost frame of each thread
interrupts     interrupts (SIGINT) that Python would drop
thread_errors  an exception raised in another thread
host_load      the load of the host before a benchmark
visible_gpus   GPUs that this process can use
missing_cuda   remedy for a program that finds no CUDA device
replaced       temporarily replaced attributes of a module or a class
garbage        garbage collection on all ranks at the same steps
user_folders   folders for a user's settings, data and cache
"""
