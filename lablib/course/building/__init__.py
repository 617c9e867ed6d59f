"""Build lab notebooks from their masters.

master      the master of a lab
parameters  the cell of parameters
solution    replace a solution by its stub
names       names that a cell binds and uses
lint        the rules of a master
notebook    the notebooks of a learner and an instructor
build       `lab build`
carry_over  merge a learner's copy into a newer version of the lab
export      `lab export --students`
colab       `lab export --colab`
addresses   the repository, and a link to Colab
"""
