"""torch's batched operators: one call for a list of tensors instead of a kernel for each.

    foreach.mul_(params, 0.9)                  params[i] *= 0.9
    foreach.add_(params, grads, alpha=-lr)     params[i] += -lr grads[i]
    foreach.div_(params, [2.0, 3.0])           params[i] /= the i-th number

On a GPU, one kernel serves hundreds of tensors; on a CPU the loop runs in C++. With `_` a list is changed, without it
the result is a new list, as large as the old one. torch.optim is made of these.
"""

# ruff: noqa: F401  (used as foreach.add_)
from lablib.torch_compat import foreach_add_ as add_
from lablib.torch_compat import foreach_addcdiv_ as addcdiv_
from lablib.torch_compat import foreach_addcmul_ as addcmul_
from lablib.torch_compat import foreach_clamp_max_ as clamp_max_
from lablib.torch_compat import foreach_clamp_min as clamp_min
from lablib.torch_compat import foreach_clamp_min_ as clamp_min_
from lablib.torch_compat import foreach_div_ as div_
from lablib.torch_compat import foreach_lerp as lerp
from lablib.torch_compat import foreach_lerp_ as lerp_
from lablib.torch_compat import foreach_mul as mul
from lablib.torch_compat import foreach_mul_ as mul_
from lablib.torch_compat import foreach_norm as norm
from lablib.torch_compat import foreach_reciprocal_ as reciprocal_
from lablib.torch_compat import foreach_rsqrt_ as rsqrt_
from lablib.torch_compat import foreach_sign_ as sign_
from lablib.torch_compat import foreach_sqrt as sqrt
