"""The zoo by name in Python: every member runs, learns, ignores padding and does what its record says."""

import copy
import inspect
import pickle

import pytest
import torch
from small_zoo import D, HEADS, LONGEST, NAMES, OPTIONS, ROOT, dba, made, tokens
from torch import nn
from torch.nn.utils import prune


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_all_twenty_are_there_with_their_records():
    assert len(NAMES) == 20 and len(set(NAMES)) == 20 and set(OPTIONS) <= set(NAMES)
    performer = dba.zoo.member("performer")
    assert performer.title == "Performer" and performer.capabilities.growth == "linear" and performer.parameters > 0
    features, kernel, seed = performer.options
    assert (features.name, features.default, features.least) == ("features", "256", 1)
    assert kernel.choices == ("softmax", "relu") and seed.default == "1"
    assert dba.zoo.member("linformer").options[-1].default is None
    for text in ((ROOT / "include/dba/zoo.h").read_text(), inspect.getsource(dba.zoo.records)):
        assert "How the memory grows with the length" in text and "f the time in n, for one head of width 1" in text


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_packing_change_nothing_and_every_parameter_learns(name):
    layer = made(name)
    lengths = [LONGEST, 1, 23]
    x = tokens(3, LONGEST).requires_grad_()
    padding = torch.arange(LONGEST) >= torch.tensor(lengths)[:, None]
    y, none = layer(x, x, x, key_padding_mask=padding)
    assert none is None and y.shape == x.shape
    assert not y[padding].any() and y[~padding].isfinite().all()
    # Alone, beside others that are longer, and one behind the other.
    for b, length in enumerate(lengths):
        close(layer(x[b : b + 1, :length])[0][0], y[b, :length])
    packed, _ = layer(x[~padding], cu_seqlens=torch.tensor([0, 40, 41, 64]))
    close(packed, y[~padding])
    # Whatever stands in the padding is not read, NaN included.
    close(layer(x.masked_fill(padding[..., None], torch.nan), key_padding_mask=padding)[0], y)

    weights = tokens(3, LONGEST, seed=4)
    (y * weights).sum().backward()
    assert x.grad[~padding].abs().sum() > 0 and not x.grad[padding].any()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        # Biases of keys cancel in a softmax; all else moves the output.
        assert parameter.grad.any() or parameter_name.endswith("bias"), parameter_name


def nodes_behind(output):
    """The names of all nodes of the graph that backward goes through."""
    names, seen, waiting = [], set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name())
            waiting += [following for following, _ in node.next_functions]
    return names


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("sparse", "bigbird", "pixelfly")])
def test_rows_of_mixed_lengths_are_moved_and_never_added_up(name):
    """Sums by index in a repeatable order take a GPU longer than all the rest, above all those of places without a token.
    (The three others read some rows several times, and must add up their gradients.)"""
    padding = torch.arange(LONGEST) >= torch.tensor([LONGEST, 35, 30])[:, None]
    y = made(name)(tokens(3, LONGEST).requires_grad_(), key_padding_mask=padding)[0]
    assert not [node for node in nodes_behind(y) if "IndexSelect" in node or "Gather" in node]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_sequences(name, layout):
    layer, parts = made(name), [tokens(1, n, seed=n)[0] for n in (7, 1, 12)]
    y = layer(torch.nested.nested_tensor(parts, layout=layout))[0]
    for part, own in zip(parts, y.unbind(), strict=True):
        close(own, layer(part)[0])


@pytest.mark.parametrize("length", [9, LONGEST])
def test_the_linear_transformer_takes_transforms_of_functions(length):
    """Fewer tokens than columns, and more."""
    layer, x, step = made("linear"), tokens(2, length), tokens(2, length, seed=4)
    plain = x.clone().requires_grad_()
    layer(plain)[0].square().sum().backward()
    close(torch.func.grad(lambda t: layer(t)[0].square().sum())(x), plain.grad)
    for slope in (torch.func.jvp, torch.autograd.functional.jvp):
        close(slope(lambda t: layer(t)[0].square().sum(), (x,), (step,))[1], (plain.grad * step).sum())


@pytest.mark.parametrize("name", ["local", "sparse"])
def test_one_block_of_many_tokens_is_softmax_attention(name):
    """More than have a map of all pairs."""
    layer, softmax = dba.zoo.make(name, D, HEADS, block=2000, dtype=torch.float64), made("softmax")
    layer.load_state_dict(softmax.state_dict())
    close(layer(tokens(1, 1100))[0], softmax(tokens(1, 1100))[0])


@pytest.mark.parametrize("name", NAMES)
def test_cross_attention_is_there_where_the_record_says_so(name):
    layer = made(name)
    x, memory = tokens(2, 9), tokens(2, LONGEST, seed=5)
    padding = torch.arange(LONGEST) >= torch.tensor([[LONGEST], [7]])
    if not dba.zoo.member(name).capabilities.cross_attention:
        with pytest.raises(ValueError, match=f"dba::{name}: has no cross-attention"):
            layer(x, memory)
        return
    y, _ = layer(x, memory, memory, key_padding_mask=padding)
    assert y.shape == x.shape
    close(layer(x[1:], memory[1:, :7])[0], y[1:])


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_copied_stored_and_cast_as_any_module(name):
    torch.manual_seed(7)
    layer = made(name, dropout=0.5).eval()
    x = tokens(2, 12)
    y = layer(x)[0]
    before = torch.get_rng_state()
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    fresh = dba.zoo.make(name, D, HEADS, dtype=torch.float64, **OPTIONS.get(name, {}))
    fresh.load_state_dict(layer.state_dict())
    for other in (*copies, fresh.eval()):
        assert torch.equal(other(x)[0], y)
    with torch.no_grad():
        for parameter in copies[0].parameters():
            parameter.zero_()
    assert torch.equal(layer(x)[0], y) and (name == "fnet" or not torch.equal(copies[0](x)[0], y))
    swapped = {key: value * 2 for key, value in layer.state_dict().items()}
    close(torch.func.functional_call(fresh, swapped, (x,))[0], loaded(fresh, swapped)(x)[0])
    # Sampling by hashes may decide otherwise in another precision.
    if dba.zoo.member(name).name not in ("reformer", "yoso"):
        torch.testing.assert_close(layer.float()(x.float())[0].double(), y, rtol=1e-3, atol=1e-4)


def tensors_of(module):
    return [*module.parameters(), *module.buffers()]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_made_on_the_default_device_and_materialised_from_meta(name):
    real, x = made(name), tokens(2, 12)
    with torch.device("meta"):
        layer, elsewhere = made(name), made(name, device="cpu")
    assert all(tensor.is_meta for tensor in tensors_of(layer)) and layer(x.to("meta"))[0].is_meta
    assert all(tensor.is_cpu for tensor in tensors_of(elsewhere)) and torch.equal(elsewhere(x)[0], real(x)[0])
    layer.to_empty(device="cpu").load_state_dict(real.state_dict())
    assert torch.equal(layer(x)[0], real(x)[0])

    torch.set_default_device("meta")
    try:
        layer = made(name)
    finally:
        torch.set_default_device(None)
    assert all(tensor.is_meta for tensor in tensors_of(layer))
    layer.to_empty(device="cpu")
    for tensor in tensors_of(layer):
        tensor.detach().fill_(torch.nan)
    torch.manual_seed(2)
    layer.reset_parameters()
    if name == "dba":  # drawn in float64 here, and cast to it there
        assert layer(x)[0].isfinite().all()
    else:
        assert torch.equal(layer(x)[0], real(x)[0])


@pytest.mark.parametrize("name", ["local", "luna", "reformer"])
def test_models_of_members_are_made_on_the_default_device(name):
    def classifier():
        return dba.models.Classifier(dba.models.ModelConfig(method=name, d=D, heads=HEADS), 3, features=2, max_length=8)

    with torch.device("meta"):
        model = classifier()
    assert all(tensor.is_meta for tensor in tensors_of(model))
    real, x = classifier().eval(), torch.randn(2, 8, 2)
    model.to_empty(device="cpu").load_state_dict(real.state_dict())
    assert torch.equal(model.eval()(x), real(x))


def loaded(layer, state):
    layer = copy.deepcopy(layer)
    layer.load_state_dict(state)
    return layer


def test_softmax_attention_is_that_of_pytorch():
    layer = made("softmax")
    reference = nn.MultiheadAttention(D, HEADS, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([layer.w_q.weight, layer.w_k.weight, layer.w_v.weight]))
        reference.in_proj_bias.copy_(torch.cat([layer.w_q.bias, layer.w_k.bias, layer.w_v.bias]))
        reference.out_proj.load_state_dict(layer.w_o.state_dict())
    x, padding = tokens(2, 11), torch.arange(11) >= torch.tensor([[11], [6]])
    close(layer(x, key_padding_mask=padding)[0][~padding],
          reference(x, x, x, key_padding_mask=padding, need_weights=False)[0][~padding])


def test_the_seed_decides_random_choices_and_torchs_generator_the_weights():
    same, other = made("performer"), made("performer", seed=5)
    assert torch.equal(same.features, made("performer").features) and not torch.equal(same.features, other.features)
    assert torch.equal(same.w_q.weight, other.w_q.weight)


def test_dropout_acts_in_training_alone():
    layer = made("local", dropout=0.5)
    x = tokens(1, 12)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_are_right_or_refused(name):
    layer = made(name, dropout=0.2)

    def output(x):
        torch.manual_seed(3)
        return layer(x)[0]

    x = tokens(1, 6).requires_grad_()
    try:
        torch.autograd.grad(output(x).square().sum(), x, create_graph=True)[0].square().sum().backward()
    except RuntimeError as refusal:
        assert "double backward is not supported" in str(refusal) or "is not implemented" in str(refusal)
        return
    assert torch.autograd.gradgradcheck(output, (x,), fast_mode=True)


def test_a_member_serves_in_pytorchs_encoder_and_in_compiled_code():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, HEADS, 32, batch_first=True, dropout=0.0).eval()
    layer.self_attn = dba.zoo.make("nystromformer", D, HEADS, landmarks=4)
    x = torch.randn(2, 20, D)
    padding = torch.arange(20) >= torch.tensor([[20], [13]])
    with torch.no_grad():
        y = layer(x, src_key_padding_mask=padding)
        torch.testing.assert_close(layer(x[1:, :13]), y[1:, :13])
        compiled = torch.compile(layer, backend="eager")
        torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), y)


def test_padding_does_not_count_for_the_longest_sequence():
    layer, x = made("linformer"), tokens(2, LONGEST + 8)
    lengths = torch.tensor([[LONGEST], [5]])
    padding = torch.arange(LONGEST + 8) >= lengths
    y = layer(x, key_padding_mask=padding)[0]
    torch.testing.assert_close(y[:, :LONGEST], layer(x[:, :LONGEST], key_padding_mask=padding[:, :LONGEST])[0])
    # Queries have no positions of their own.
    assert layer(tokens(1, LONGEST + 1), tokens(1, 3))[0].shape == (1, LONGEST + 1, D)


@pytest.mark.parametrize("name, tensor", [("performer", "features"), ("reformer", "rotations"), ("yoso", "directions"),
                                          ("scatterbrain", "features")])
def test_random_choices_differ_from_layer_to_layer(name, tensor):
    config = dba.models.ModelConfig(method=name, layers=3, d=D, heads=HEADS, method_options="seed=4")
    encoder = dba.models.Encoder(config, max_length=8)
    drawn = [getattr(layer.attention, tensor) for layer in encoder.layers]
    assert not any(torch.equal(drawn[i], drawn[j]) for i in range(3) for j in range(i))
    assert torch.equal(drawn[2], getattr(dba.zoo.make(name, D, HEADS, seed=4 + 2 * 1_000_003), tensor))
    # Beyond the largest seed they begin at 0 again.
    config.method_options = f"seed = {2**53}"
    drawn = [getattr(layer.attention, tensor) for layer in dba.models.Encoder(config, max_length=8).layers]
    assert torch.equal(drawn[1], getattr(dba.zoo.make(name, D, HEADS, seed=1_000_002), tensor))


def test_arguments_stand_where_those_of_dbattention_do():
    parameters = list(inspect.signature(dba.DBAttention).parameters.values())
    positional = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    for function in (dba.zoo.make, dba.zoo.ZooAttention):
        of_zoo = [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
        assert of_zoo[1:-1] == positional
    for name in ("local", "dba"):
        layer = dba.zoo.make(name, D, HEADS, 0.5, kdim=D, vdim=D)
        assert not torch.equal(layer(tokens(1, 9).float())[0], layer(tokens(1, 9).float())[0])
        with pytest.raises(ValueError, match="kdim must be None or embed_dim, 16, got 8"):
            dba.zoo.make(name, D, HEADS, kdim=8)


def test_a_part_is_replaced_by_one_with_the_same_tensors():
    layer, x, part = made("local"), tokens(1, 9), nn.Linear(D, D, dtype=torch.float64)
    layer.w_q = part
    y = layer(x)[0]
    with torch.no_grad():
        part.weight.mul_(2)
    assert not torch.equal(layer(x)[0], y)
    for bias, part, other, sentence in (
        (True, "w_q", nn.Linear(D, D, bias=False), r"w_q.bias must be a tensor of shape \(16,\), got None"),
        (True, "w_q", nn.Linear(D, 8), r"w_q.weight must be a tensor of shape \(16, 16\), got float32 \(8, 16\)"),
        (True, "w_o", nn.Identity(), "w_o.weight must be a tensor"),
        (False, "w_q", nn.Linear(D, D), "w_q.bias must be None, got float32"),
    ):
        layer = made("local", bias=bias)
        setattr(layer, part, other)
        with pytest.raises(ValueError, match=f"dba.zoo.local: {sentence}") as refused:
            layer(x)
        assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_bias_where_none_belongs_is_refused_however_the_part_holds_it():
    for hold in (
        lambda part: prune.identity(part, "bias"),
        lambda part: nn.utils.parametrize.register_parametrization(part, "bias", nn.Tanh()),
        lambda part: (delattr(part, "bias"), setattr(part, "bias", torch.ones(D, dtype=torch.float64))),
    ):
        layer = made("linear", bias=False)
        layer.w_q = nn.Linear(D, D, dtype=torch.float64)
        hold(layer.w_q)
        with pytest.raises(ValueError, match="w_q.bias must be None, got float64"):
            layer(tokens(1, 9))


@pytest.mark.parametrize("name", ["linear", "flowformer", "fnet"])
@pytest.mark.parametrize("length", [9, LONGEST])
def test_gradients_may_be_asked_for_in_batches(name, length):
    x = tokens(1, length).requires_grad_()
    y = made(name)(x)[0]
    directions = tokens(3, *y.shape[:2])
    together = torch.autograd.grad(y, x, directions, is_grads_batched=True, retain_graph=True)[0]
    for direction, gradient in zip(directions, together, strict=True):
        torch.testing.assert_close(torch.autograd.grad(y, x, direction, retain_graph=True)[0], gradient)


def test_what_cannot_be_done_is_said_in_a_sentence():
    x = tokens(1, LONGEST + 1)
    linformer, local, single = made("linformer"), made("local"), made("linear").float()
    for sentence, call in (
        ('no member is called "perfomer"; the nearest known one is "performer"', lambda: made("perfomer")),
        ('the options features, kernel, seed, got "feature"; the nearest known one is "features"',
         lambda: dba.zoo.make("performer", D, HEADS, feature=3)),
        ('no member is called "LOCAL"; the nearest known one is "local"', lambda: made("LOCAL")),
        ('flowformer has no options of its own, got "d_p"', lambda: made("flowformer", d_p=4)),
        ('dba has the options d_p, d_in, .*, got "dp"; the nearest known one is "d_p"',
         lambda: dba.zoo.make("dba", D, HEADS, dp=4)),
        ('luna has the options d_p, z_dropout, .*, got "dp"; the nearest known one is "d_p"',
         lambda: dba.zoo.make("luna", D, HEADS, dp=4)),
        ("luna: d_p must be an integer of 1 or more, got '3'; write 3",
         lambda: dba.zoo.make("luna", D, HEADS, d_p="3")),
        ("luna: d_p must be an integer of 1 or more, got 4.0; write 4",
         lambda: dba.zoo.make("luna", D, HEADS, d_p=4.0)),
        ("luna: d_p must be at most 2147483648, got 10", lambda: dba.zoo.make("luna", D, HEADS, d_p=10**30)),
        ("dba.zoo.local: embed_dim must be at most 2147483648, got 10", lambda: dba.zoo.make("local", 10**30, HEADS)),
        ("dba.zoo.local: bias must be True or False, got 'no'", lambda: made("local", bias="no")),
        ("dba.zoo.local: batch_first must be True or False", lambda: made("local", batch_first="no")),
        ('option features must be one value, got "3, seed=5"',
         lambda: dba.zoo.make("performer", D, HEADS, features="3, seed=5")),
        ("option block of local must be at most 2147483648", lambda: dba.zoo.make("local", D, HEADS, block=2**40)),
        ("option features of performer must be an integer of 1 or more, got \"0\"",
         lambda: dba.zoo.make("performer", D, HEADS, features=0)),
        ("give the option max_length", lambda: dba.zoo.make("linformer", D, HEADS)),
        ("at most max_length = 40 tokens, got one of 41", lambda: linformer(x)),
        ("d must be divisible by heads", lambda: dba.zoo.make("local", D, 3)),
        ("has no cross-attention", lambda: local(x, tokens(1, 3))),
        ("must be of the parameters' type", lambda: local(x.float())),
        (r"dba.zoo.linear: query must be of the parameters' type, torch.float32, got torch.bfloat16 \(1, 41, 16\); "
         r"cast the tokens or the layer with .to\(\), or use torch.autocast$", lambda: single(x.bfloat16())),
        (r"dba.zoo.linear: key must be of the parameters' type, torch.float32, got torch.bfloat16 \(41, 16\)",
         lambda: single(x[0].float(), x[0].bfloat16())),
        ("query must be of the parameters' type, torch.float32, got nested torch.float16",
         lambda: single(torch.nested.nested_tensor([x[0].half()]))),
        (r"torch.float32, got torch.float64 \(1, 41, 16\); cast the tokens or the layer with .to\(\)$",
         lambda: single(x)),
        ("torch.float32, got torch.float64", lambda: torch.autocast("cpu", torch.bfloat16)(single)(x)),
        ("torch.float64, got torch.float32", lambda: made("local", device="meta")(x.float().to("meta"))),
        (r"dba.zoo.local: query must be on the device of the parameters, cpu, got \(1, 41, 16\) on meta; move",
         lambda: local(x.to("meta"))),
        ("dba.zoo.linear: key must be on the device of the parameters, meta, got a nested tensor on cpu; move",
         lambda: made("linear", device="meta")(x[:, :9].to("meta"), torch.nested.nested_tensor([x[0]]))),
        ("dba.zoo.local: dtype must be a floating torch.dtype, got 'float16'; write torch.float16",
         lambda: dba.zoo.make("local", D, HEADS, dtype="float16")),
        ("dba.zoo.local: dtype must be a floating torch.dtype, got torch.int64; torch.float32 is one",
         lambda: dba.zoo.make("local", D, HEADS, dtype=torch.int64)),
        ("dba.DBAttention: dtype must be a floating torch.dtype, got 3;",
         lambda: dba.zoo.make("dba", D, HEADS, dtype=3)),
        ("dba.zoo.fnet: query must be of a floating type, got torch.int64", lambda: made("fnet")(x.long())),
        ("dba.zoo.local: query must be a tensor, got list", lambda: local([[1.0]])),
        ("dba.zoo.fnet: query must be a tensor, got ndarray", lambda: made("fnet")(x.numpy())),
        ("dba.zoo.local: cu_seqlens must be a tensor, got list", lambda: local(x[0], cu_seqlens=[0, 9])),
        ("dba.zoo.local: torch cannot look into a layer of the zoo", lambda: torch.export.export(local, (x,))),
        ("need_weights must be False", lambda: local(x, need_weights=True)),
        ("is_causal must be False", lambda: local(x, is_causal=True)),
        ("key_padding_mask must have shape", lambda: local(x, key_padding_mask=torch.zeros(1, 2, dtype=torch.bool))),
        ("dba.zoo.local: key_padding_mask has holes",
         lambda: local(x, key_padding_mask=torch.arange(LONGEST + 1)[None] == 3)),
        ("dba.zoo.local: a floating key_padding_mask must hold 0",
         lambda: local(x, key_padding_mask=torch.full((1, LONGEST + 1), 0.5))),
        ("dba.zoo.local: cu_seqlens must be int32 or int64", lambda: local(x[0], cu_seqlens=torch.zeros(2))),
        ("dba.zoo.local: cu_seqlens must not be negative", lambda: local(x[0], cu_seqlens=torch.tensor([0, 99]))),
        ("dba.zoo.linformer: key_cu_seqlens must not be negative",
         lambda: linformer(x[0], x[0] + 1, cu_seqlens=torch.tensor([0, 9]), key_cu_seqlens=torch.tensor([0, 99]))),
        ("dba.zoo.local: embed_dim must be an integer of 1 or more, got 64.0; write 64",
         lambda: dba.zoo.make("local", 64.0, 4)),
        ("dba.zoo.local: embed_dim must be an integer of 1 or more, got '64'; write 64",
         lambda: dba.zoo.make("local", "64", 4)),
        ("dba.zoo.local: num_heads must be an integer of 1 or more, got None; give a whole number",
         lambda: dba.zoo.make("local", 64, None)),
        (r"dba.zoo.local: num_heads must be an integer of 1 or more, got tensor\(4.\); write 4",
         lambda: dba.zoo.make("local", 64, torch.tensor(4.0))),
        ("dba.zoo.local: dropout must be a number in .*; write it without quotes",
         lambda: dba.zoo.make("local", 64, 4, dropout="0.1")),
        ("dba.zoo.local: dropout must be a number in .*; 0 is no dropout",
         lambda: dba.zoo.make("local", 64, 4, dropout=None)),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
