# The largest singular value of a weight matrix and its stable rank, without a decomposition of it.
"""Lanczos on the Gram matrix of the smaller side, every vector kept orthogonal to all before it.

No generator is used: the first vector is a fixed sequence plus the matrix' largest row, both of
length 1. The value found is never above the true one (but for rounding), and some singular value
lies within the residual of it. That is the largest unless its singular vector is orthogonal to
the first vector. Nearly orthogonal is enough where it has not come up when another one has
converged.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainmon.torch.measuring.isolated import isolated

TOLERANCE = 1e-4  # the relative residual at which it stops, where values can be looked at
STEPS = 48  # at most; as many where looking would wait for a device
CHECK_EVERY = 4  # steps between two looks
CPU_BLOCK = 1 << 19  # elements taken at a time, which is what copies in a wide dtype need
DEVICE_BLOCK = 1 << 24
SAFE = 1e-6, 1e4  # absolute maxima of which fourth powers are in range without scaling
SQUARINGS = 32  # of a small matrix, for its first eigenvector: gaps of 1e-9 are told apart


def spectral(matrix: Tensor, *, look: bool | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(stable rank, spectral norm, residual) as tensors without dimensions on the matrix' device.

    The stable rank is |W|_F / |W|_2, not squared; the residual is relative to |W|_2. All are 0 of
    a matrix of zeros, of an empty one and of what is no matrix. They are NaN with a NaN or an
    infinity in it.

    Two passes over the matrix and one per step of Lanczos. Steps are at most STEPS or what the
    smaller side has. They are fewer when the residual falls below TOLERANCE, if values may be
    looked at (`look`: on the CPU alone, by default). It works in float32 (float64 of float64). It
    needs one block of the matrix in that dtype, a vector of the larger side and one of the
    smaller side per step.
    """
    with isolated():
        matrix = matrix.detach()
        wide = torch.float64 if matrix.dtype == torch.float64 else torch.float32
        look = matrix.device.type == "cpu" if look is None else look
        if matrix.dim() != 2 or matrix.numel() == 0:
            return _all(0.0, wide, matrix.device)
        tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.t()
        blocks = _Blocks(tall, wide, look)
        if look and (blocks.size == 0 or not math.isfinite(blocks.size)):
            return _all(0.0 if blocks.size == 0 else math.nan, wide, matrix.device)
        norms = torch.cat([torch.linalg.vector_norm(block, dim=1) for block in blocks])
        lanczos = _Lanczos(blocks, _start(blocks, norms), min(STEPS, tall.shape[1]))
        value, residual = lanczos.looking() if look else lanczos.blind()
        norm = value.clamp(min=0).sqrt().to(wide)
        rank = _over(torch.linalg.vector_norm(norms), norm)
        return rank, norm * blocks.scale, residual.to(wide)


def _all(value: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.full((), value, dtype=dtype, device=device) for _ in range(3))


class _Blocks:
    """A tall matrix by blocks of rows in a wide dtype, divided by its absolute maximum if need be."""

    def __init__(self, tall: Tensor, wide: torch.dtype, look: bool):
        most = CPU_BLOCK if tall.device.type == "cpu" else DEVICE_BLOCK
        self.tall, self.wide = tall, wide
        self.blocks = tall.split(max(1, most // tall.shape[1]))
        ends = [torch.stack(torch.aminmax(block.to(wide))) for block in self.blocks]
        scale = torch.stack(ends).abs().amax()
        self.size = float(scale) if look else None
        # Taken as it is, a matrix of that dtype needs no copies.
        self.bare = look and tall.dtype == wide and SAFE[0] < self.size < SAFE[1]
        one = torch.ones_like(scale)
        self.scale = one if self.bare else torch.where(scale == 0, one, scale)

    def __iter__(self):
        for block in self.blocks:
            # Divided, not multiplied: the inverse of a subnormal number is infinite.
            yield block if self.bare else block.to(self.wide).div(self.scale)

    def times(self, vector: Tensor) -> Tensor:
        """The Gram matrix times the vector. Each block is used twice while it is at hand."""
        total = None
        for block in self:
            part = torch.mv(block.t(), torch.mv(block, vector))
            total = part if total is None else total.add_(part)
        return total


def _start(blocks: _Blocks, norms: Tensor) -> Tensor:
    tall, wide = blocks.tall, blocks.wide
    places = torch.arange(1, tall.shape[1] + 1, dtype=wide, device=tall.device)
    sequence = _unit(places.mul_((math.sqrt(5) - 1) / 2).frac_())  # of mean 1/2 before
    row = tall.index_select(0, norms.argmax().reshape(1))[0].to(wide)
    row = _unit(row.div(blocks.scale))
    return _unit(sequence + torch.where(torch.dot(sequence, row) < 0, -row, row))


def _unit(values: Tensor) -> Tensor:
    return _over(values, torch.linalg.vector_norm(values))


def _over(values: Tensor, divisor: Tensor) -> Tensor:
    """Their quotient; 0 over 0 is 0."""
    return values / torch.where(divisor == 0, torch.ones_like(divisor), divisor)


class _Lanczos:
    """Steps of Lanczos. What they find is a small tridiagonal matrix, of alphas and betas."""

    def __init__(self, blocks: _Blocks, start: Tensor, steps: int):
        self.blocks, self.steps = blocks, steps
        self.basis = start.new_zeros(steps, start.numel())
        self.basis[0] = start
        self.least = 4 * torch.finfo(start.dtype).eps

    def step(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """(alpha, beta, the next vector times beta)"""
        found = self.basis[: number + 1]
        vector = self.blocks.times(self.basis[number])
        parts = torch.mv(found, vector)
        vector.addmv_(found.t(), parts, alpha=-1)
        vector.addmv_(found.t(), torch.mv(found, vector), alpha=-1)  # what rounding left
        return parts[number], torch.linalg.vector_norm(vector), vector

    def looking(self) -> tuple[Tensor, Tensor]:
        """The largest eigenvalue of the Gram matrix, and the relative residual of its square root."""
        alphas: list[float] = []
        betas: list[float] = []
        for number in range(self.steps):
            alpha, beta, vector = self.step(number)
            alphas.append(float(alpha))
            betas.append(float(beta))
            # Below this there is only rounding: all that the first vector leads to has been seen.
            stop = number + 1 == self.steps or betas[-1] <= self.least * max(alphas)
            if stop or number % CHECK_EVERY == CHECK_EVERY - 1:
                side = torch.tensor(betas[:-1], dtype=torch.float64).diag(1)
                small = torch.tensor(alphas, dtype=torch.float64).diag() + side + side.t()
                values, vectors = torch.linalg.eigh(small)
                residual = _residual(values[-1], vectors[-1, -1].abs() * betas[-1])
                if stop or residual <= TOLERANCE:
                    return values[-1], residual
            torch.div(vector, beta, out=self.basis[number + 1])
        raise AssertionError  # the last step returns

    def blind(self) -> tuple[Tensor, Tensor]:
        """The same without looking at any value, in a fixed number of steps."""
        exact = torch.float32 if self.basis.device.type == "mps" else torch.float64
        small = self.basis.new_zeros(self.steps, self.steps, dtype=exact)
        for number in range(self.steps):
            small[number, number], beta, vector = self.step(number)
            ended = beta <= self.least * small.diagonal().amax()
            beta = torch.where(ended, 0.0, beta)
            if number + 1 < self.steps:
                self.basis[number + 1] = _over(vector, beta)
                small[number, number + 1] = small[number + 1, number] = beta
        # Decompositions wait for the device, to see whether they went well: squaring does not.
        power = small
        for _ in range(SQUARINGS):
            power = _unit(power)
            power = power @ power
        column = power.diagonal().argmax().reshape(1)
        vector = _unit(power.index_select(1, column)[:, 0])
        image = torch.mv(small, vector)
        value = torch.dot(vector, image)
        rest = torch.linalg.vector_norm(image - value * vector)
        return value, _residual(value, torch.hypot(rest, (beta * vector[-1]).to(exact)))


def _residual(value: Tensor, of_square: Tensor) -> Tensor:
    """Of the root, relative to it: |s - root| = |s^2 - value| / (s + root), where s^2 is near value."""
    share = _over(of_square, value)
    return share / (1 + (1 - share).clamp(min=0).sqrt())
