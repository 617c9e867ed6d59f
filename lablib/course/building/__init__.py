"""Building labs: notebooks from masters.

master      a lab's one source
parameters  its tagged cell of parameters
solution    from a solution to its stub
names       names that a cell binds and uses
lint        the rules of a master
notebook    the notebooks of a learner and an instructor
build       `lab build`
carry_over  a learner's copy and a newer version of the lab
export      `lab export --students`
new         `lab new`
"""
