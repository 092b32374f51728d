"""dba.DBAttention and dba.DBACrossAttention in the convention of nn.MultiheadAttention: masks, packed and nested
batches, refusals."""

import pytest
import torch
from small_attention import HEADS, dba, make, tokens

FORMS = [{"form": "paper"}, {"form": "paper", "normalise": "linear"}, {"form": "released"},
         {"form": "paper", "compress_width": False, "bias": False}]


def map_of(weights):
    """What the factors say of the whole map, form paper: W_r' P' W_c'ᵀ."""
    return weights.w_r_prime @ weights.p @ weights.w_c_prime.transpose(2, 3)


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("cross", [False, True])
def test_gradients_are_right(options, cross):
    module = make(**options)
    x, other = tokens(2, 5).requires_grad_(), tokens(2, 4, seed=2).requires_grad_()
    mask = torch.tensor([[False] * 5, [False, False, True, True, True]])
    names = [name for name, _ in module.named_parameters()]

    def run(x, other, *parameters):
        arguments = (x, other) if cross else (x,)
        masks = {"query_padding_mask" if cross else "key_padding_mask": mask}
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), arguments, masks)[0]

    assert torch.autograd.gradcheck(run, (x, other, *module.parameters()), fast_mode=True)


@pytest.mark.parametrize("options", [{"form": "paper"}, {"form": "released"}])
def test_gradients_of_the_papers_cross_attention_are_right(options):
    module = make(dba.DBACrossAttention, **options)
    x, other = tokens(2, 5).requires_grad_(), tokens(2, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, other: module(x, other)[0], (x, other), fast_mode=True)


def test_output_is_the_factors_applied_to_the_values():
    for options in ({}, {"normalise": "linear"}):
        module = make(**options)
        x, other = tokens(2, 6), tokens(2, 9, seed=2)
        for key in (x, other):
            y, weights = module(x, key, need_weights=True)
            values = module.w_v(key).unflatten(2, (HEADS, -1)).transpose(1, 2)
            # The bias of V passes W_c', whose rows need not sum to 1.
            mixed = (map_of(weights) @ values).transpose(1, 2).flatten(2)
            torch.testing.assert_close(y, module.w_o(mixed), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_papers_cross_attention_follows_its_equations(form):
    """Everything as docs/mathematics.md writes it, dense, for one pair of sequences."""

    def by_head(t):
        return t.unflatten(-1, (HEADS, -1)).transpose(0, 1)

    def compressed(slots, scored, values):
        scores = by_head(slots) @ by_head(scored).transpose(1, 2)
        return ((scores / by_head(slots).shape[2] ** 0.5).softmax(2) @ by_head(values)).transpose(0, 1).flatten(1)

    module = make(dba.DBACrossAttention, form=form)
    x, other = tokens(7), tokens(4, seed=2)
    first, z = module.compressor, module.compressor.slots.z
    if form == "released":
        c_2 = compressed(first.p_q(z), first.p_k(other), first.p_v(other))
        queries = by_head(module.w_q(compressed(module.p_q(c_2), module.p_k(x), module.p_v(x))))
        keys = by_head(module.w_k(c_2))
    else:
        c_2 = compressed(z, first.w_q(other), first.w_q(other))
        queries = by_head(compressed(module.w_z(c_2), module.w_q(x), module.w_q(x))) @ module.r
        keys = by_head(module.w_k(c_2)) @ module.r
    p = (queries @ keys.transpose(1, 2) / keys.shape[2] ** 0.5).softmax(2)
    slots = (p @ by_head(module.w_v(c_2))).transpose(0, 1).flatten(1)
    slots = module.norm(slots) if form == "released" else slots
    restoring = by_head(module.restoring(x)).softmax(2)
    y, weights = module(x, other, need_weights=True)
    torch.testing.assert_close(y, module.w_o((restoring @ by_head(slots)).transpose(0, 1).flatten(1)), rtol=1e-10,
                               atol=1e-12)
    for got, wanted in ((weights.p[0], p), (weights.w_r_prime[0], restoring)):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_factors_have_their_shapes_and_no_map_is_returned_unasked():
    module = make()
    y, weights = module(tokens(2, 7), need_weights=True)
    assert [tuple(w.shape) for w in weights] == [(2, 2, 3, 7), (2, 2, 3, 7), (2, 2, 3, 3), (2, 2, 7, 3), (2, 2, 7, 3)]
    torch.testing.assert_close(weights.w_r.sum(3), torch.ones(2, 2, 3, dtype=torch.double))
    assert module(tokens(2, 7))[1] is None
    released = make(form="released")(tokens(2, 7), need_weights=True)[1]
    assert released.w_c is None and released.w_c_prime is None and released.p.shape == (2, 2, 3, 3)
    cross = make(dba.DBACrossAttention)(tokens(2, 7), tokens(2, 4), need_weights=True)[1]
    assert cross.w_r.shape == (2, 2, 3, 7) and cross.w_c is None


def test_asking_a_copy_of_oneself_is_self_attention():
    for options in FORMS:
        module = make(**options)
        x = tokens(2, 6)
        torch.testing.assert_close(module(x, x.clone())[0], module(x)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [dba.DBAttention, dba.DBACrossAttention])
@pytest.mark.parametrize("floating", [False, True])
def test_padding_has_no_influence_and_comes_out_as_zeros(kind, floating):
    """The second sequence is padded on both sides, the third is padding alone."""
    module = make(kind)
    x = tokens(3, 6)
    real = torch.tensor([[True] * 6, [False, True, True, True, False, False], [False] * 6])
    mask = torch.zeros(real.shape, dtype=torch.double).masked_fill(~real, -torch.inf) if floating else ~real
    x[~real] = float("nan")
    x.requires_grad_()
    key = {"key_padding_mask": mask}
    y = module(x, **key)[0] if kind is dba.DBAttention else module(x, x, **key, query_padding_mask=mask)[0]
    assert torch.equal(y[~real], torch.zeros_like(y[~real])) and y[real].abs().min() > 0
    short = x[1:2, 1:4].detach()
    alone = module(short)[0] if kind is dba.DBAttention else module(short, short)[0]
    torch.testing.assert_close(y[1:2, 1:4], alone, rtol=1e-12, atol=1e-14)
    y.sum().backward()
    assert torch.equal(x.grad[~real], torch.zeros_like(y[~real]))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_cross_attention_reads_both_masks():
    module = make()
    x, other = tokens(2, 6), tokens(2, 5, seed=2)
    pad = torch.tensor([[False] * 4 + [True] * 2] * 2)
    other_pad = torch.tensor([[True] * 2 + [False] * 3] * 2)
    y = module(x, other, other, key_padding_mask=other_pad, query_padding_mask=pad)[0]
    torch.testing.assert_close(y[:, :4], module(x[:, :4], other[:, 2:])[0], rtol=1e-12, atol=1e-14)


def test_layouts_of_one_batch_agree():
    module = make()
    lengths = [4, 0, 7]
    rows = tokens(11)
    cu_seqlens = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    packed = module(rows, cu_seqlens=cu_seqlens)[0]
    parts = rows.split(lengths)
    for part, y in zip(parts, packed.split(lengths), strict=True):
        if len(part):
            torch.testing.assert_close(module(part)[0], y, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(module(part[None])[0][0], y, rtol=1e-12, atol=1e-14)
    for layout in (torch.jagged, torch.strided):
        nested = torch.nested.as_nested_tensor(list(parts), layout=layout)
        y = module(nested)[0]
        assert y.is_nested and y.layout == layout
        torch.testing.assert_close(torch.cat(y.unbind()), packed, rtol=1e-12, atol=1e-14)
    turned = make(batch_first=False)
    x = tokens(3, 5)
    torch.testing.assert_close(turned(x.transpose(0, 1))[0].transpose(0, 1), module(x)[0], rtol=1e-12, atol=1e-14)
    across = module(rows, tokens(6), cu_seqlens=cu_seqlens, key_cu_seqlens=torch.tensor([0, 1, 3, 6]))[0]
    torch.testing.assert_close(across[4:], module(rows[4:], tokens(6)[3:])[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)], ids=str)
def test_empty_batches_keep_their_shape(shape):
    for module in (make(), make(batch_first=False), make(form="released"), make(dba.DBACrossAttention)):
        leaf = tokens(*shape).requires_grad_()
        y, weights = module(leaf, leaf, need_weights=True)
        assert y.shape == leaf.shape and weights.w_r.shape[:1] == (shape[0 if module.batch_first else 1],)
        y.sum().backward()
        assert leaf.grad.shape == leaf.shape and all(p.grad.eq(0).all() for p in module.parameters())


def test_strides_do_not_matter():
    module, whole = make(), tokens(2, 5)
    mask = torch.tensor([[False] * 5, [True, False, False, False, True]])
    expected = module(whole, key_padding_mask=mask)[0]
    turned, apart = whole.permute(2, 1, 0).contiguous().permute(2, 1, 0), torch.stack([whole, whole], 3)[..., 0]
    assert not turned.is_contiguous() and not apart.is_contiguous()
    for batch in (turned, apart):
        assert torch.equal(module(batch, key_padding_mask=mask.t().contiguous().t())[0], expected)
    rows = turned.flatten(0, 1)
    assert torch.equal(module(rows.t().contiguous().t(), cu_seqlens=torch.tensor([0, 5, 10]))[0][:5], expected[0])


def test_nested_batches_have_gradients():
    module = make()
    rows = tokens(11).requires_grad_()
    for layout in (torch.jagged, torch.strided):
        nested = torch.nested.as_nested_tensor(list(rows.split([4, 7])), layout=layout)
        y = module(nested)[0]
        loss = sum(part.square().sum() for part in y.unbind())
        expected = module(rows, cu_seqlens=torch.tensor([0, 4, 11]))[0].square().sum()
        got, wanted = (torch.autograd.grad(value, rows)[0] for value in (loss, expected))
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)


x = tokens(2, 5)
REFUSED = {
    "is_causal must be False": lambda m: m(x, is_causal=True),
    "attn_mask must be None": lambda m: m(x, attn_mask=torch.zeros(5, 5)),
    "value must be the key": lambda m: m(x, x, x.clone()),
    "key_padding_mask must have shape": lambda m: m(x, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool)),
    "must be boolean or floating": lambda m: m(x, key_padding_mask=torch.zeros(2, 5, dtype=torch.long)),
    "must hold 0": lambda m: m(x, key_padding_mask=torch.full((2, 5), 0.5)),
    "must be contiguous": lambda m: m(x, key_padding_mask=torch.tensor([[False, True, False, False, False]] * 2)),
    "must have width 8": lambda m: m(torch.zeros(2, 5, 9)),
    "must have 2 dimensions": lambda m: m(torch.zeros(1, 2, 5, 8)),
    "a nested query must be of shape": lambda m: m(torch.nested.as_nested_tensor([x], layout=torch.jagged)),
    "of the parameters' type, torch.float64, got torch.float32": lambda m: m(x, x.float()),
    "query must be of the parameters' type": lambda m: m(x.float()),
    "one set of sequences": lambda m: m(x, query_padding_mask=torch.zeros(2, 5, dtype=torch.bool)),
    "query must be a tensor, got list; make one with torch.as_tensor": lambda m: m([[1.0]]),
    "query must be a tensor, got ndarray": lambda m: m(x.numpy()),
    "query must be a tensor, got None": lambda m: m(None),
    "key must be a tensor, got list": lambda m: m(x, [[1.0]]),
    "cu_seqlens must be a tensor, got list": lambda m: m(x[0], cu_seqlens=[0, 5]),
    "key_padding_mask must be a tensor, got list": lambda m: m(x, key_padding_mask=[[False] * 5] * 2),
    "attn_mask must be None, got list": lambda m: m(x, attn_mask=[[1]]),
    "lengths must be a tensor, got list": lambda m: dba.Sequences.from_lengths([3], 4),
    "mask must be a tensor, got list": lambda m: dba.Sequences.from_mask([[True]]),
    "as many sequences as query": lambda m: m(x, x[:1]),
    "must be packed rows": lambda m: m(x, cu_seqlens=torch.tensor([0, 5])),
    "must not be negative, not decrease": lambda m: m(x[0], cu_seqlens=torch.tensor([0, 6])),
    r"got torch.int64 \(2, 5, 8\); cast the tokens or the layer": lambda m: m(x.long()),
    "DBAttention: dtype must be a floating torch.dtype, got 'torch.half'; write torch.float16":
        lambda m: dba.DBAttention(8, 2, dtype="torch.half"),
    "DBAttention: dtype must be a floating torch.dtype, got torch.complex64; torch.float32 is":
        lambda m: dba.DBAttention(8, 2, dtype=torch.complex64),
    "add_bias_kv must be False": lambda m: dba.DBAttention(8, 2, add_bias_kv=True),
    "add_zero_attn must be False": lambda m: dba.DBAttention(8, 2, add_zero_attn=True),
    "kdim must be None": lambda m: dba.DBAttention(8, 2, kdim=4),
    "must be divisible": lambda m: dba.DBAttention(8, 3),
    "DBAttention: embed_dim must be an integer of 1 or more, got 8.0; write 8": lambda m: dba.DBAttention(8.0, 2),
    "DBAttention: embed_dim must be an integer of 1 or more, got '8'; write 8": lambda m: dba.DBAttention("8", 2),
    "DBAttention: num_heads must be an integer of 1 or more, got 2.5; give a": lambda m: dba.DBAttention(8, 2.5),
    "DBAttention: d_p must be an integer of 1 or more, got True": lambda m: dba.DBAttention(8, 2, d_p=True),
    "DBAttention: embed_dim must be at most 2147483648": lambda m: dba.DBAttention(10**30, 2),
    "DBAttention: bias must be True or False, got 'no'": lambda m: dba.DBAttention(8, 2, bias="no"),
    "DBAttention: batch_first must be True or False": lambda m: dba.DBAttention(8, 2, batch_first="no"),
    "dropout must be a number in": lambda m: dba.DBAttention(8, 2, dropout="0.1"),
    "form must be one of": lambda m: dba.DBAttention(8, 2, form="other"),
    "form released has": lambda m: dba.DBAttention(8, 2, form="released", normalise="linear"),
    "dropout must lie": lambda m: dba.DBAttention(8, 2, dropout=1.0),
    "backend must be one of": lambda m: dba.DBAttention(8, 2, backend="quick"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_has_no_meaning_is_refused_in_words(sentence):
    with pytest.raises(ValueError, match=sentence) as refusal:
        REFUSED[sentence](make())
    assert str(refusal.value).startswith("dba.")


def test_rounding_of_d_in_is_said():
    with pytest.warns(UserWarning, match="rounded up to 8"):
        dba.DBAttention(8, 4, d_in=6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("cross", [False, True])
def test_on_a_gpu_the_numbers_are_the_cpus_and_nothing_waits_for_it(cross):
    mask = torch.arange(40) >= torch.tensor([[40], [13], [0]])
    results = {}
    for device in ("cpu", "cuda"):
        module, leaf = make().to(device), tokens(3, 40).to(device).requires_grad_()
        other, pad = tokens(3, 9, seed=2).to(device), mask.to(device)

        def run(module=module, leaf=leaf, other=other, pad=pad):
            y = module(leaf, other, query_padding_mask=pad)[0] if cross else module(leaf, key_padding_mask=pad)[0]
            return (y, *torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()]))

        results[device] = [value.cpu() for value in run()]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for got, wanted in zip(results["cuda"], results["cpu"], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
