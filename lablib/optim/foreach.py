"""torch's batched operators: one call for a list of tensors, where a loop would start a kernel for each.

    foreach.mul_(params, 0.9)                  params[i] *= 0.9
    foreach.add_(params, grads, alpha=-lr)     params[i] += -lr grads[i]
    foreach.div_(params, [2.0, 3.0])           params[i] /= the i-th number

On a GPU, one kernel serves hundreds of tensors; on a CPU the loop runs in C++. With `_` a list is changed, without it
the result is a new list, as large as the old one. torch.optim is made of these; their names in torch are private, so
they are named here, once.
"""
# pyright: reportPrivateImportUsage=false

import torch

add_ = torch._foreach_add_
addcdiv_ = torch._foreach_addcdiv_
addcmul_ = torch._foreach_addcmul_
clamp_max_ = torch._foreach_clamp_max_
clamp_min = torch._foreach_clamp_min
clamp_min_ = torch._foreach_clamp_min_
div_ = torch._foreach_div_
lerp = torch._foreach_lerp
lerp_ = torch._foreach_lerp_
mul = torch._foreach_mul
mul_ = torch._foreach_mul_
norm = torch._foreach_norm
reciprocal_ = torch._foreach_reciprocal_
rsqrt_ = torch._foreach_rsqrt_
sign_ = torch._foreach_sign_
sqrt = torch._foreach_sqrt
