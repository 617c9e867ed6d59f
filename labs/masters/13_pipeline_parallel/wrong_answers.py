"""Wrong answers to lab 13: pipeline parallel, and right ones in an unusual style."""

WRONG_ANSWERS = {}

RIGHT_ANSWERS = {}
