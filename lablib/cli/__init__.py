"""The `lab` command line.

main        the parser, and the subcommands of a few lines
arguments   the arguments of the subcommands
sim         `lab sim`: a script on a simulated cluster
train       `lab train`: training from a configuration
bench       `lab bench`: speed, memory and scaling of a training configuration, with limits
capstone    `lab capstone`: a planned training, from its brief to the leader board
site        `lab site`: the course as static pages, and the planner, which runs in the browser
assertion   `--assert` of `lab sim` and `lab plan`
plan        `lab plan`: predict a run, or search for the best plan
plan_explained  `lab plan --why`: a measured step next to its prediction
plan_written    `lab plan --write`: a plan as a configuration
nodes       `lab nodes`: a program on real GPUs of several nodes
calibrate   `lab calibrate`: measure this machine
validate    `lab validate`: compare the planner with published runs
"""
