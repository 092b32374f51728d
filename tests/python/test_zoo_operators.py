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


TYPES = [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(2, 9, 16), (1, 1, 1), (3, 2, 7), (2, 257, 130)], ids=str)
def test_a_whole_real_spectrum_comes_from_its_half(device, shape):
    """The real part of the transform over tokens and columns, whatever the layout of the half."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected = torch.fft.fft2(x).real
    for dtype, tolerance in TYPES:
        half = torch.fft.rfft2(x.to(device, torch.float64 if dtype == torch.float64 else torch.float32))
        found = torch.ops.dba.real_spectrum(half, shape[2], dtype)
        assert found.dtype == dtype and found.shape == shape and found.is_contiguous()
        assert (found.double().cpu() - expected).norm() <= tolerance * expected.norm()
        for strided in (half.transpose(1, 2).contiguous().transpose(1, 2), half.conj().resolve_conj().conj()):
            assert torch.equal(torch.ops.dba.real_spectrum(strided, shape[2], dtype), found)
        assert torch.ops.dba.real_spectrum(half[:0], shape[2], dtype).shape == (0, *shape[1:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1003, 70_000])
def test_a_feature_of_the_linear_transformer_keeps_small_exponentials(device, count):
    """exp(x) or x + 1, and its slope, at any address; NaN stays."""
    x = 8 * torch.randn(count + 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x[count // 2] = -30.0
    for dtype, tolerance in TYPES:
        for given in (x.to(device, dtype)[:count], x.to(device, dtype)[1:]):
            exact = given.double().cpu()
            expected = torch.where(exact > 0, exact + 1, exact.exp())
            found = torch.ops.dba.elu_plus_one_forward(given)
            least = torch.finfo(dtype).tiny
            assert found.dtype == dtype
            assert ((found.double().cpu() - expected).abs() <= tolerance * expected + least).all()
            dx = torch.ops.dba.elu_plus_one_backward(given, found).double().cpu()
            assert ((dx - exact * expected.clamp_max(1)).abs() <= 2 * tolerance * (exact * expected).abs() + least).all()
    lost = torch.tensor([float("nan"), 1.0], device=device)
    assert torch.ops.dba.elu_plus_one_forward(lost).isnan().tolist() == [True, False]


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
    half = torch.zeros(2, 5, 4, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match=r"dba::real_spectrum: half must be complex, \(B, n, 5\) for the width 8, got"):
        torch.ops.dba.real_spectrum(half, 8, torch.float32)
    with pytest.raises(RuntimeError, match=r"dba::real_spectrum: dtype must be a floating type, got Long"):
        torch.ops.dba.real_spectrum(half, 7, torch.int64)
