"""Worker processes: started warm, given one program after another.

pools, pool         the pools of this process; one pool of workers
processes           worker processes as the launching process sees them
worker              one rank: waits for programs, runs each as a new process would, reports
fresh               settings, environment and seeds of a new process
private             where launcher and workers find each other
channel, messages   messages over a socket
shipping, pickling  a program and its values, for another process
placed              a program's arguments on the rank's GPU
capture             a rank's output
rendezvous          a file in which ranks of one machine meet
peers               connections of other users are refused
failure             which of several failures is the cause
timeouts            time limits of communication
numa                the cores nearest to a rank's GPU
fixed_environment   environment variables that a library reads once
"""
