"""The CPU simulator: a `torch.distributed` backend with ranks as threads and times from a cost model.

It connects torch to the engine (lablib/engine), which orders ranks and messages in virtual time. Read in this order:

    sketch.py        a minimal self-contained simulator in 200 lines: threads, a baton, a clock
    simulation.py    run one program: the ranks take turns
    build.py         its parts: ranks, network, groups
    report.py        its result, warnings and errors
    borrowed_process.py  state of the process, changed during a run
    ranks/           threads that take turns, each with the state of a process
    communication/   torch.distributed: collectives, messages, groups, the store
    operators/       time and output shapes of every operator
    memory/          memory accounting: every storage of a rank
    faults/          slow ranks and links, kills, corrupted gradients
    source.py        the line of the program that made a call
    lines.py         the line of the program behind every operator
    notebook.py      the notebook's variables that a program changed
"""

from lablib.sim.simulation import is_rank, run_sim

__all__ = ["is_rank", "run_sim"]
