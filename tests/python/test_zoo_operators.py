"""The operators inside members of the zoo that have kernels of their own, on the CPU and on a GPU."""

import pytest
import torch
from small_zoo import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n, m, hashes", [(1, 1, 1), (5, 63, 3), (17, 300, 70), (40, 128, 32)])
def test_agreeing_codes_are_counted(device, n, m, hashes):
    """Every pair of a query and a key, with codes of sixteen bits, in every type that products are taken in."""
    chance = torch.Generator().manual_seed(n)
    choices = torch.tensor([0, 1, -1, 255, 256, -32768], dtype=torch.int16)
    queries = choices[torch.randint(0, 6, (3, n, hashes), generator=chance)].to(device)
    keys = choices[torch.randint(0, 6, (3, hashes, m), generator=chance)].to(device)
    counts = (queries.unsqueeze(3) == keys.unsqueeze(1)).sum(2)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        found = torch.ops.dba.code_agreement(queries, keys, dtype)
        assert found.dtype == dtype and torch.equal(found, counts.to(dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(2, 1, 3, 5), (3, 130, 4, 65), (1, 37, 8, 64), (2, 9, 0, 4)], ids=str)
@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (1, 200), (65, 2)])
def test_sums_beyond_a_window_are_those_of_their_rows(device, shape, before, after):
    """In every type that sums are taken in, contiguous or not, with the same bits every time."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    i, j = torch.arange(shape[1])[:, None], torch.arange(shape[1])[None]
    beyond = ((j <= i - before) | (j >= i + after)).double()
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-6), (torch.float16, 2e-3),
                             (torch.bfloat16, 2e-2)):
        given = x.to(device, dtype)
        expected = torch.einsum("ij,cjab->ciab", beyond, given.double().cpu())
        found = torch.ops.dba.sums_beyond(given, before, after)
        assert found.dtype == dtype and found.shape == shape
        assert (found.double().cpu() - expected).norm() <= tolerance * expected.norm()
        strided = given.transpose(2, 3).contiguous().transpose(2, 3)
        assert torch.equal(torch.ops.dba.sums_beyond(strided, before, after), found)


def test_the_inner_operators_of_the_zoo_refuse_what_their_kernels_could_not_read():
    x, codes = torch.ones(2, 5, 3, 4), torch.zeros(2, 5, 3, dtype=torch.int16)
    with pytest.raises(RuntimeError, match=r"dba::sums_beyond: before and after must be at least 0, got -1 and 2"):
        torch.ops.dba.sums_beyond(x, -1, 2)
    with pytest.raises(RuntimeError, match=r"dba::sums_beyond: x must be \(c, rows, a, b\), got \[2, 5, 3\]"):
        torch.ops.dba.sums_beyond(x[..., 0], 1, 2)
    with pytest.raises(RuntimeError, match=r"dba::code_agreement: codes must be .*, got \[2, 5, 3\] and \[2, 5, 3\]"):
        torch.ops.dba.code_agreement(codes, codes, torch.float32)
    many = torch.zeros(1, 1, 1 << 15, dtype=torch.int16)
    with pytest.raises(RuntimeError, match=r"dba::code_agreement: there may be at most 32767 hashes, .*, got 32768"):
        torch.ops.dba.code_agreement(many, many.transpose(1, 2), torch.float32)
    with pytest.raises(RuntimeError, match=r"dba::code_agreement: codes must be int16, got Long and Short"):
        torch.ops.dba.code_agreement(codes.long(), codes.transpose(1, 2), torch.float32)
