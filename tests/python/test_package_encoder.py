"""One line changed in somebody's PyTorch model: nn.TransformerEncoder and nn.TransformerDecoder with DBA in them, and
training over two processes."""

import copy
import os
import pathlib
import pickle
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402

SIZES = {"d_p": 4, "d_in": 8}


def encoder_of(layers=2, seed=0, **options):
    torch.manual_seed(seed)
    settings = {"dim_feedforward": 24, "dropout": 0.0, "batch_first": True, **options}
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, **settings), layers)


def replaced(**options):
    model = encoder_of(**options)
    dba.replace_attention(model, **SIZES)
    return model


def test_report_says_what_was_swapped_and_what_was_left():
    torch.manual_seed(0)
    whole = nn.Transformer(16, 2, num_encoder_layers=2, num_decoder_layers=1, dim_feedforward=24, batch_first=True)
    whole.add_module("probe", nn.MultiheadAttention(16, 2))
    report = dba.replace_attention(whole, **SIZES)
    assert list(report.swapped) == ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]
    assert set(report.left) == {"decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn", "probe"}
    assert "causal" in report.left["decoder.layers.0.self_attn"]
    assert "swapped 2, left 3" in str(report) and "probe: left alone, it belongs to no" in str(report)
    assert isinstance(whole.encoder.layers[0].self_attn, dba.DBAttention)
    assert isinstance(whole.decoder.layers[0].self_attn, nn.MultiheadAttention)
    again = dba.replace_attention(whole, **SIZES)
    assert not again.swapped and "DBAttention already" in again.left["encoder.layers.0.self_attn"]


def test_what_dba_cannot_stand_in_for_is_left_and_foreign_layers_do_not_disturb():
    class Foreign(nn.Module):
        def forward(self, x, **_):
            return x

    model = encoder_of(layers=2)
    model.layers[0] = Foreign()
    model.layers[1].self_attn = nn.MultiheadAttention(16, 2, add_zero_attn=True, batch_first=True)
    assert "add_zero_attn" in dba.replace_attention(model, **SIZES).left["layers.1.self_attn"]
    assert isinstance(model.layers[1].self_attn, nn.MultiheadAttention)


def test_new_attention_takes_over_the_old_ones_settings():
    model = encoder_of(dropout=0.25, bias=False, batch_first=False).double().eval()
    dba.replace_attention(model, **SIZES)
    attention = model.layers[0].self_attn
    assert (attention.embed_dim, attention.num_heads, attention.dropout) == (16, 2, 0.25)
    assert attention.w_q.bias is None and not attention.batch_first and not attention.training
    assert attention.w_q.weight.dtype == torch.double and attention.d_p == 4
    assert model.layers[0].self_attn is not model.layers[1].self_attn
    x = torch.randn(7, 3, 16, dtype=torch.double)
    one = model(x[:, 1:2])
    torch.testing.assert_close(model(x)[:, 1:2], one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("built", ["replaced", "constructed"])
@pytest.mark.parametrize("masked", [False, True])
def test_eval_has_no_path_around_us(built, masked, monkeypatch):
    """PyTorch's encoder would call a kernel of its own in eval() without gradients, and nested tensors with a mask."""
    if built == "replaced":
        model = replaced().eval()
    else:
        layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=24, dropout=0.0, batch_first=True)
        torch.manual_seed(0)
        layer.self_attn = dba.DBAttention(16, 2, **SIZES)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for function in ("_transformer_encoder_layer_fwd", "_nested_tensor_from_mask"):
        monkeypatch.setattr(torch, function, lambda *_, **__: pytest.fail("PyTorch's fast path was taken"))
    x = torch.randn(3, 9, 16)
    mask = torch.arange(9) >= torch.tensor([[9], [4], [0]]) if masked else None
    calls = []
    for layer in model.layers:
        layer.self_attn.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=mask)
        in_training = copy.deepcopy(model).train()(x, src_key_padding_mask=mask)
    assert sum(calls) == 4 and torch.equal(plain, in_training)
    if masked:
        changed = x.clone()
        changed[mask] = 1e4
        got = model(changed, src_key_padding_mask=mask)
        assert torch.equal(got[~mask], plain[~mask]) and got.isfinite().all()
        torch.testing.assert_close(got[1:2, :4], model(x[1:2, :4]), rtol=1e-5, atol=1e-6)


def test_masks_without_meaning_are_refused_in_words():
    model = replaced()
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    with pytest.raises(ValueError, match="is_causal must be False"):
        model(torch.randn(2, 9, 16), mask=causal)
    with pytest.raises(ValueError, match="attn_mask must be None"):
        model(torch.randn(2, 9, 16), mask=torch.eye(9, dtype=torch.bool))


def test_nested_batches_go_through_pytorchs_layer():
    layer = replaced(layers=1).layers[0]
    parts = [torch.randn(4, 16), torch.randn(7, 16)]
    y = layer(torch.nested.as_nested_tensor(parts, layout=torch.jagged))
    for part, got in zip(parts, y.unbind(), strict=True):
        torch.testing.assert_close(got, layer(part[None])[0], rtol=1e-5, atol=1e-6)


class Reader(nn.Module):
    """Which of 5 symbols occurs: a task that needs the whole sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(12, 16)
        self.encoder = encoder_of(layers=1)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def task(generator, count):
    labels = torch.randint(5, (count,), generator=generator)
    tokens = torch.randint(5, 12, (count, 40), generator=generator)
    places = torch.randint(40, (count, 1), generator=generator)
    return tokens.scatter(1, places, labels[:, None]), labels


def test_replaced_encoder_trains():
    model = Reader()
    dba.replace_attention(model, **SIZES)
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        tokens, labels = task(generator, 64)
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    tokens, labels = task(generator, 200)
    accuracy = (model.eval()(tokens).argmax(1) == labels).double().mean()
    assert accuracy > 0.9
    other = Reader()
    dba.replace_attention(other, **SIZES)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(tokens), model(tokens))


def test_decoder_whose_queries_are_not_causal():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 2, dim_feedforward=24, dropout=0.0, batch_first=True)
    decoder = nn.TransformerDecoder(layer, 1).double()
    report = dba.replace_attention(decoder, queries_are_causal=False, **SIZES)
    assert list(report.swapped) == ["layers.0.multihead_attn"] and list(report.left) == ["layers.0.self_attn"]
    target, memory = torch.randn(2, 6, 16, dtype=torch.double), torch.randn(2, 8, 16, dtype=torch.double)
    pad = torch.arange(6) >= torch.tensor([[6], [4]])
    memory_pad = torch.arange(8) >= torch.tensor([[8], [3]])
    for model in (decoder, pickle.loads(pickle.dumps(copy.deepcopy(decoder)))):
        y = model(target, memory, tgt_key_padding_mask=pad, memory_key_padding_mask=memory_pad)
        alone = model(target[1:, :4], memory[1:, :3])
        torch.testing.assert_close(y[1:, :4], alone, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="show the future"):
        decoder(target, memory, tgt_mask=nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.double))


WORKER = """
import sys, torch, dba
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, port, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
if rank >= 0:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
torch.manual_seed(0)
config = dba.models.ModelConfig(d=8, heads=2, layers=2, d_ffn=16, d_p=3, d_in=6, dropout=0.0, attention_dropout=0.0)
model = torch.nn.ModuleDict({"classifier": dba.models.Classifier(config, 3, features=8, max_length=20),
                             "attention": dba.DBAttention(8, 2, d_p=3, d_in=6)}).double()

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = model
    def forward(self, x):
        return self.parts["classifier"](self.parts["attention"](x)[0])

whole = Whole()
trained = DistributedDataParallel(whole) if rank >= 0 else whole
x, labels = torch.randn(4, 20, 8, dtype=torch.double), torch.tensor([0, 1, 2, 1])
mine = slice(2 * rank, 2 * rank + 2) if rank >= 0 else slice(None)
optimiser = torch.optim.SGD(trained.parameters(), lr=0.1)
for _ in range(3):
    loss = torch.nn.functional.cross_entropy(trained(x[mine]), labels[mine])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
if rank <= 0:
    torch.save(whole.state_dict(), file)
if rank >= 0:
    dist.destroy_process_group()
"""


def test_two_processes_train_like_one_with_the_whole_batch(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(port), str(tmp_path / "together.pt")],
                                env=environment, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["", "-1", "0", str(tmp_path / "alone.pt")])
    exec(compile(WORKER, "worker", "exec"), {})
    torch.set_num_threads(threads)
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
    alone, together = (torch.load(tmp_path / f"{name}.pt") for name in ("alone", "together"))
    assert list(alone) == list(together)
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-9, atol=1e-12, msg=name)
