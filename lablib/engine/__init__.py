"""The engine: ranks with virtual clocks that meet, and a network that their transfers share. It knows no torch.

A rank's work arrives as seconds and bytes, and leaves as events. Whoever runs the ranks (lablib/sim: threads) makes
these calls for the rank whose turn it is, and asks whose turn is next. Read in this order:

    rank_clock.py      one rank's virtual time
    port.py            one end of a wire: one message at a time
    cores.py           a node's cores, where ranks are processes that share them
    wires.py           which wires a transfer uses
    network.py         transfers under way on one wire share it
    scheduler.py       whose turn it is; a deadlock is a fact
    communication.py   what can be waited for: a meeting of a group, a message
    events.py          what happens, for whoever wants to be told
    conditions.py      what things cost, and what never ends: where faults reach the engine
    group.py           where members meet: collectives, sends and receives, and their times
"""
