"""Run labs with papermill and in JupyterLab; diagnose the machine.

execute      `lab run`: a lab with papermill
jupyter      `lab open`: a lab in JupyterLab
on_gpu       a lab's programs on a stand-in for a GPU
doctor       `lab doctor`: checks of this machine
doctor_gpus  its checks of GPUs
doctor_settings  its checks of variables of NCCL, gloo and torch
recorded     a lab's recorded comparison
environment  temporary environment variables
"""
