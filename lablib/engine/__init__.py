"""The discrete-event engine: ranks with virtual clocks, process groups, a shared network; no torch.

A rank submits work as seconds and bytes; the engine reports events. The host of the ranks (lablib/sim runs them as
threads) makes these calls for the current rank and asks which rank runs next. Read in this order:

    rank_clock.py      the virtual clock of one rank
    port.py            one end of a wire, which carries one message at a time
    cores.py           processor cores of a node, shared by ranks that are processes
    wires.py           the wires that a transfer uses
    network.py         bandwidth sharing of concurrent transfers
    scheduler.py       the order in which ranks run; deadlock detection
    communication.py   communications that a rank can wait for: a collective, a message
    events.py          events and their subscribers
    conditions.py      costs and failures of communications: the hook for faults
    group.py           a process group: collectives, sends and receives, and their times
"""
