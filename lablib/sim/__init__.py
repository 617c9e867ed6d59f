"""The CPU simulator: a `torch.distributed` backend whose ranks are threads and whose time is the cost model's.

The skin of the engine (lablib/engine), which says who waits for whom and when. Read in this order:

    sketch.py          the whole idea in 200 lines that stand alone: threads, a baton, a clock
    turns.py           ranks are threads that take turns
    watchdog.py        a wait outside torch.distributed that never ends
    rank.py            what one rank has for itself
    own_settings.py    its settings of Python and torch
    signals.py         its signal handlers
    copies.py          its copy of the arguments
    collector.py       Python's collector, for the time of a run
    notebook.py        what a program changed of the notebook
    threads.py         whose a thread is that a rank starts
    source.py          the line of the program that made a call
    delivery.py        tensors on their way: buffers are filled by their own wait
    exchange.py        what each collective does with its tensors
    reduce.py          sums in rank order
    recorder.py        what travelled, written down
    group_orders.py    compare the order of groups over the ranks
    work.py            waiting
    in_flight.py       reads of what is in flight, and writes to it
    unwaited.py        what nobody waited for, what was used too early, and outputs that overlap inputs
    pending.py         results that are waited for when they are touched
    process_group.py   torch.distributed's view of it all
    store.py           the key-value store
    lines.py           the line of the program behind every operator
    program_position.py           phase and line of the operator under way
    op_traits.py           what is asked of every operator
    storages.py        watching a storage until it dies
    allocation_log.py         what is held: blocks that begin and end
    categories.py      what each block is
    memory_tracker.py          every storage of a rank
    clock.py           the price of every operator
    compiled.py        compiled functions run eagerly
    faulty_rank.py     a rank that is slow, late or dead
    faulty_network.py  links that are slow or down
    corruption.py      a gradient with a wrong element
    faults.py          the faults of a run, and what they did to it
    simulation.py      run one program
"""

from lablib.sim.simulation import is_rank, run_sim

__all__ = ["is_rank", "run_sim"]
