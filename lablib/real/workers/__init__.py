"""Warm worker processes, which run one program after another.

pools, pool         the pools of this process; one pool of workers
processes           worker processes as seen by the launching process
worker              one rank: waits for programs, runs each as a new process would, reports
fresh               settings, environment and seeds of a new process
private             private socket between launcher and workers
channel, messages   messages over a socket
shipping, pickling  serialization of a program and its values for another process
capture             a rank's output
rendezvous          rendezvous of the ranks of one machine in a file
peers               rejection of connections of other users
failure             the cause among several failures
numa                the cores nearest to a rank's GPU
"""
