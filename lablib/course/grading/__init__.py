"""Grading with nbgrader.

assignment     a lab as an nbgrader assignment
settings       nbgrader's timeouts, and "not graded" where a notebook failed outside the answers
grades_export  nbgrader's table of scores
regrade        earlier submissions, graded again
"""
