# %% [markdown]
# # Lab 90: An example
#
# **Question.** What does a master
# look like?
#
# Two exercises: a function and a number. **Prerequisites.** Lab 08; helpful: labs 02 and 03.

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 4  # number of ranks
cluster: str = "dgx-h100"  # the simulated machine
interactive: bool = True  # widgets, or static pictures
quick: bool = True  # small sizes
scale: float = 1.5  # a factor

# %%
from lablib.course import checks_for, try_out

check = checks_for("90")
values = list(range(ranks))
print(values)

# %% [markdown] tags=["instructor"]
# Ask the class first what a mean is.

# %% [markdown] minutes=4
# ## Exercise 1: the mean
#
# Write `mean`, in one pass over the values.


# %% tags=["exercise"]
def mean(values: list[float]) -> float:
    """The sum divided by the count."""
    ### BEGIN SOLUTION
    return sum(values) / len(values)
    ### END SOLUTION


# %%
try_out(mean, [1.0, 2.0])

# %% tags=["check"] points=2
check.mean(mean)

# %% [markdown] minutes=3.5
# ## Exercise 2: a size

# %% tags=["exercise"]
# How many bytes do 10 values in float32 take?
### BEGIN SOLUTION
size_bytes = 10 * 4
### END SOLUTION

# %%
try_out(size_bytes)

# %% tags=["check"]
check.size(size_bytes)

# %%
print(f"{ranks} ranks on {cluster} ({backend}), scale {scale}")
