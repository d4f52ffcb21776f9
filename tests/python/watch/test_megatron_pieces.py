# Where the elements of Megatron's shards lie in the full tensor, against tensors that are really cut.
import itertools

import pytest
import torch

from trainmon.torch.wrappers.megatron import MOST_PIECES, Cut, pieces


@pytest.mark.parametrize(
    "dim, stride, size", [(0, 1, 2), (1, 1, 2), (0, 2, 2), (1, 3, 2), (2, 2, 4)]
)
def test_elements_lie_where_the_pieces_say(dim, stride, size):
    shape = [2, 3, 5]
    shape[dim] = 2 * stride * size
    full = torch.arange(2 * stride * size * 30 // (2, 3, 5)[dim]).view(shape)
    for rank in range(size):
        chunks = full.chunk(stride * size, dim)
        local = torch.cat([chunks[turn * size + rank] for turn in range(stride)], dim)
        cut, count = Cut(dim, stride, rank, size), local.numel()
        for begin, end in itertools.product((0, 1, count // 3), (count // 2, count - 1, count)):
            found = [full.flatten()[a:b] for a, b in pieces(tuple(local.shape), cut, begin, end)]
            assert torch.equal(torch.cat(found), local.flatten()[begin:end])


def test_a_shard_in_more_pieces_than_are_listed():
    assert len(pieces((1000, 4), Cut(1, 1, 0, 2), 0, 4000)) > MOST_PIECES
    assert pieces((7,), None, 2, 5) == ((2, 5),)
