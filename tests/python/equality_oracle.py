# What every wrapper's rows must say: an independent training in one process, statistics by NumPy.
"""train() plays all data ranks one after another, averages their gradients and steps torch's AdamW on
float32 weights. Never imports trainmon. `expected[kind, name, step, micro, rank]` has the statistics of
the whole tensor: micro is -1 but for grad_unreduced, rank is -1 but where ranks differ.
"""

from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F

import equality_gpt as gpt

EPS = 1e-8  # of the statistic zeros
STATISTICS = ("norm", "min", "max", "mean", "count", "zeros")


def statistics(tensor) -> dict:
    x = tensor.detach().to(torch.float64).numpy().reshape(-1)
    return {
        "norm": float(np.sqrt(np.square(x).sum())),
        "min": float(x.min()),
        "max": float(x.max()),
        "mean": float(x.mean()),
        "count": x.size,
        "zeros": float((np.abs(x) < EPS).mean()),
        "scale": float(np.abs(x).mean()),  # what an error of the mean is compared with
        "absmax": float(np.abs(x).max()),
    }


def _split_linear(x, weight, bias=None):
    product = x @ weight.t()
    return product if bias is None else product + bias


def train(
    data_ranks: int = gpt.RANKS,
    compute=torch.float32,  # dtype of the weights that the forward uses, and of each backward's gradients
    accumulate=None,  # dtype in which micro steps are added up (None: `compute`)
    reduce=None,  # dtype in which ranks are averaged (None: `accumulate`)
    each_micro: bool = False,  # grad_unreduced is what each micro step gives, not their sum so far
    reduce_each: bool = False,  # ranks are averaged after each micro step, and then added up
    idle_steps: int = 0,  # steps with gradients of 0 that the optimizer takes before training
    begin=None,  # dtype to which the first weights are rounded before masters are made of them
    clip: float = 0.0,  # grad_reduced, moments and weights are those after clipping to this norm
    split_linear: bool = False,  # a linear layer's product is rounded before its bias is added
    loss_scale: float = 0.0,  # grad_unreduced has it; halved, and no step, where one is not finite
) -> dict:
    linear = _split_linear if split_linear else F.linear
    masters = gpt.make().to(begin).to(torch.float32) if begin else gpt.make()
    model = gpt.make().to(compute)
    accumulate = accumulate or compute
    optimizer = torch.optim.AdamW(masters.parameters(), foreach=False, **gpt.ADAMW)
    names = [name for name, _ in masters.named_parameters()]
    expected = {}

    def averaged(ranks):
        """Of the lists of gradients that each rank has."""
        for parts in zip(*ranks, strict=True):
            yield torch.stack([p.to(reduce or accumulate) / data_ranks for p in parts]).sum(0)

    def keep(kind, step, tensors, micro=-1, rank=-1):
        for name, tensor in zip(names, tensors, strict=True):
            expected[kind, name, step, micro, rank] = statistics(tensor)

    for _ in range(idle_steps):
        for p in masters.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    step = 0
    for attempt in range(gpt.STEPS):
        with torch.no_grad():
            for mine, master in zip(model.parameters(), masters.parameters(), strict=True):
                mine.copy_(master)
        own, sums = [], []
        for rank in range(data_ranks):
            total, each = [torch.zeros_like(p, dtype=accumulate) for p in model.parameters()], []
            for micro in range(gpt.MICRO_STEPS):
                ids, targets = gpt.batch(rank, attempt, micro)
                with mock.patch.object(F, "linear", linear):
                    loss = gpt.loss_of(model(ids), targets)
                loss = loss * (loss_scale or 1.0) / gpt.MICRO_STEPS
                found = torch.autograd.grad(loss, list(model.parameters()))
                total = [t + g.to(accumulate) for t, g in zip(total, found, strict=True)]
                keep("grad_unreduced", step, found if each_micro else total, micro, rank)
                each.append(found)
            own.append(each)
            sums.append(total)
        if reduce_each:
            micros = [averaged(ranks) for ranks in zip(*own, strict=True)]
            means = [sum(part.to(accumulate) for part in parts) for parts in zip(*micros)]
        else:
            means = averaged(sums)
        for p, mean in zip(masters.parameters(), means, strict=True):
            p.grad = mean.to(torch.float32) / (loss_scale or 1.0)
        if loss_scale and not all(p.grad.isfinite().all() for p in masters.parameters()):
            expected = {key: value for key, value in expected.items() if key[2] != step}
            loss_scale /= 2
            continue
        if clip:
            torch.nn.utils.clip_grad_norm_(masters.parameters(), clip)
        keep("grad_reduced", step, [p.grad for p in masters.parameters()])
        keep("param_origin", step, list(masters.parameters()))
        optimizer.step()
        keep("param_updated", step, list(masters.parameters()))
        for kind in ("exp_avg", "exp_avg_sq"):
            keep(kind, step, [optimizer.state[p][kind] for p in masters.parameters()])
        step += 1
    return expected
