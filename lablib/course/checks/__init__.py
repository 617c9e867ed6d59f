"""The checks of the labs: `lab_NN.py` holds those of lab NN, in the order of its exercises."""
