"""The models in Python are those of the program: the same names, the same numbers, files that travel both ways."""

import json
import os
import pathlib
import random
import subprocess
import sys
import warnings

import pytest
import safetensors
import safetensors.torch
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402
from dba.models.embedding import PositionEmbedding  # noqa: E402
from dba.models.yaml_text import read_settings, write_settings  # noqa: E402

DBA = pathlib.Path(os.environ.get("DBA_PROGRAM", ROOT / "build" / "release" / "bin" / "dba"))
SMALL = ["model.d=16", "model.heads=2", "model.layers=2", "model.d_ffn=24", "model.d_p=4", "model.d_in=8",
         "batch.size=8", "threads=1", "device=cpu", "train.updates=2", "optimiser.lr=0.01", "schedule.name=constant",
         "schedule.warmup=0"]
# Every choice of a model occurs.
VARIANTS = {
    "text": [],
    "pairs": ["model.form=released", "model.z_update=replace", "model.pair_features=nli",
              "data.second_text_column=more"],
    "pairs, own slots": ["model.z_update=own", "model.normalise=linear", "model.norm_first=true",
                         "data.second_text_column=more", "data.tokeniser=whitespace"],
    "series": ["model.tied=true", "model.pooling=first", "model.activation=relu", "model.scale_features=true",
               "model.output_activation=true"],
    "series, softmax": ["model.method=softmax", "model.position=sinusoidal", "model.head=linear",
                        "data.standardise=false"],
    "series, batch norm": ["model.norm=batch", "model.pooling=flatten", "data.max_length=12", "model.initialise=bert",
                           "model.norm_first=true"],
    "text, whole map": ["model.compress_length=false", "model.compress_width=false", "model.position=none",
                        "model.z_update=fixed", "data.tokeniser=whitespace", "data.cls=true", "data.eos=true"],
    "text, bare": ["model.z_update=fixed", "model.bias=false", "model.slots_norm=false", "model.embedding_norm=false",
                   "model.initialise=torch_default"],
    "text, left out": ["data.leave_out=[32, 97]", "data.cls=true", "data.max_length=30"],
    "pairs, left out": ["data.leave_out=[97, 98]", "model.position=sinusoidal", "data.second_text_column=more"],
    "text, linformer": ["model.method=linformer", "model.method_options=k = 3, share=none, max_length = 128",
                        "model.tied=true"],
    "pairs, luna": ["model.method=luna", "data.second_text_column=more", "model.initialise=bert"],
    "series, performer": ["model.method=performer", "model.method_options=features=8, seed = 9007199254740992",
                          "model.norm_first=true"],
}


def examples_of(variant):
    """Records as the program reads them, and the same as the package takes them."""
    generator = random.Random(3)
    records, raw = [], []
    for index in range(24):
        length = generator.randrange(3, 15)
        label = str(index % 3)
        if variant.startswith("series"):
            series = [[generator.gauss(index % 3, 1) for _ in range(2)] for _ in range(length)]
            # Missing at the front, in the middle, at the end, and a channel without a value.
            for step, channel in {0: [(0, 0), (1, 0)], 3: [(1, 1)], 6: [(length - 1, 0)],
                                  9: [(step, 1) for step in range(length)]}.get(index, []):
                series[step][channel] = None
            records.append({"series": series, "label": label})
            raw.append([[float("nan") if value is None else value for value in step] for step in series])
        else:
            texts = [" ".join(generator.choice("abcdé") * 2 for _ in range(length)) for _ in range(2)]
            records.append({"text": texts[0], "more": texts[1], "label": label})
            raw.append(texts if variant.startswith("pairs") else texts[0])
    return records, raw


def run_program(*arguments):
    result = subprocess.run([DBA, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def predictions(model, data, output):
    run_program("predict", model, "--input", data, "--output", output, "--device", "cpu")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    # Nine digits say which float32 it was.
    return [line["label"] for line in lines], torch.tensor([list(line["probabilities"].values()) for line in lines])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_trained_model_predicts_the_programs_numbers_bit_for_bit_both_ways(variant, tmp_path):
    records, raw = examples_of(variant)
    data, run = tmp_path / "data.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    settings = [*SMALL, f"data.train={data}", f"data.validation={data}", *VARIANTS[variant]]
    run_program("train", "--run", run, *(word for value in settings for word in ("--set", value)))
    labels, probabilities = predictions(run, data, tmp_path / "of_program.jsonl")
    model = dba.load(run)
    assert not model.training and model.labels == ["0", "1", "2"]
    assert torch.equal(model.predict_proba(raw), probabilities) and model.predict(raw) == labels
    # All tensors are there under the program's names, and go back to it.
    stored = safetensors.torch.load_file(run / "model.safetensors")
    state = model.state_dict()
    assert set(state) == set(stored) and all(torch.equal(state[name], stored[name]) for name in stored)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    back = tmp_path / "back.safetensors"
    model.save(back)
    labels, probabilities = predictions(back, data, tmp_path / "of_package.jsonl")
    assert torch.equal(model.predict_proba(raw), probabilities) and model.predict(raw) == labels
    assert torch.equal(dba.load(back).predict_proba(raw), probabilities)


def test_what_prediction_cuts_or_fills_is_said_once_a_call():
    config = dba.models.ModelConfig(d=16, heads=2, d_ffn=24, d_p=4, d_in=8)
    tokeniser = dba.models.Tokeniser(max_length=4, eos=True)
    nan = float("nan")
    series, cut = [[1.0, 2.0]] * 3, "cut: longer than the model takes"
    for model, encoding, fits, longer, sentence in (
            (dba.models.Classifier(config, 2, features=2, max_length=4), dba.models.Encoding("series", ["a", "b"], 2),
             series, [[1.0, nan]] * 4 + [[nan, nan]],
             "6 missing values in 1 of 2 series interpolated; channels of a series without any value: 1; "
             f"1 of 2 sequences {cut}"),
            (dba.models.Classifier(config, 2, vocabulary=258, max_length=4), dba.models.Encoding("tokens", ["a", "b"]),
             "abc", "abcd", f"1 of 2 sequences {cut}"),
            (dba.models.DualEncoder(config, 2, vocabulary=258, max_length=4), dba.models.Encoding("pairs", ["a", "b"]),
             ("a", "b"), ("abcd", "abcde"), f"1 of 2 sequences {cut}")):
        encoding.tokeniser = tokeniser
        model.encoding = encoding
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict([fits, fits])
        for function in (model.predict, model.predict_proba, model.logits):
            with pytest.warns(UserWarning) as said:
                function([fits, longer], batch_size=1)
            assert [str(one.message) for one in said] == [f"dba.models.{type(model).__name__}: {sentence}"]
            assert said[0].filename == __file__


def test_a_model_made_in_python_runs_in_the_program(tmp_path):
    torch.manual_seed(0)
    config = dba.models.ModelConfig(d=16, heads=2, d_ffn=24, d_p=4, d_in=8)
    model = dba.models.Classifier(config, 3, features=2, max_length=15).eval()
    model.encoding = dba.models.Encoding("series", ["one", "three", "two"], channels=2, mean=[0.5, 1.0],
                                         deviation=[2.0, 0.0])
    file = tmp_path / "model.safetensors"
    model.save(file)
    records, raw = examples_of("series")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"series": record["series"]}) + "\n" for record in records))
    labels, probabilities = predictions(file, data, tmp_path / "out.jsonl")
    assert torch.equal(model.predict_proba(raw), probabilities) and model.predict(raw) == labels


def test_initial_weights_are_drawn_as_the_program_draws_them():
    def deviation(tensor):
        return tensor.std().item()

    def made(scheme):
        torch.manual_seed(0)
        config = dba.models.ModelConfig(d=256, layers=1, d_ffn=512, initialise=scheme)
        return dba.models.Classifier(config, 10, vocabulary=300, max_length=400)

    luna, bert, default = (made(scheme) for scheme in ("luna", "bert", "torch_default"))
    attention = luna.backbone.encoder.layers[0].attention
    assert deviation(attention.w_q.weight) == pytest.approx((1 / 256 / 2) ** 0.5, rel=0.02)
    assert deviation(attention.w_o.weight) == pytest.approx((1 / 256) ** 0.5, rel=0.02)
    assert deviation(attention.r) == pytest.approx(6**-0.5, rel=0.05) and not attention.w_q.bias.any()
    assert deviation(luna.backbone.encoder.slots.z) == pytest.approx(256**-0.5, rel=0.05)
    assert deviation(luna.backbone.tokens.weight) == pytest.approx(256**-0.5, rel=0.02)
    assert luna.backbone.encoder.layers[0].block.linear_1.bias.any()
    for tensor in (bert.backbone.tokens.weight, bert.backbone.positions.weight, bert.backbone.encoder.slots.z,
                   bert.head.linear_1.weight):
        assert deviation(tensor) == pytest.approx(0.02, rel=0.05)
    assert default.backbone.positions.weight.abs().max() <= 0.02
    linear = default.backbone.encoder.layers[0].attention.w_q
    assert linear.bias.any() and deviation(linear.weight) == pytest.approx((1 / 256 / 3) ** 0.5, rel=0.02)


def test_padded_and_packed_batches_have_the_same_logits():
    torch.manual_seed(0)
    config = dba.models.ModelConfig(d=16, heads=2, d_ffn=24, d_p=4, d_in=8, norm="batch")
    model = dba.models.Classifier(config, 3, features=2, max_length=9).double().eval()
    x = torch.randn(3, 9, 2, dtype=torch.double)
    lengths = torch.tensor([9, 0, 4])
    sequences = dba.Sequences.from_lengths(lengths, 9)
    x[~sequences.row_mask().view(3, 9)] = float("nan")
    rows = torch.cat([x[0], x[2, :4]])
    packed = dba.Sequences.packed(torch.tensor([0, 9, 9, 13]), 13)
    torch.testing.assert_close(model(x, sequences), model(rows, packed), rtol=1e-11, atol=1e-12)
    model.train()
    loss = model(x, sequences).square().sum()
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_sequences_without_a_gap_need_not_be_of_one_length():
    torch.manual_seed(0)
    for options in ({"method": "softmax"}, {"compress_length": False}, {}):
        config = dba.models.ModelConfig(d=16, heads=2, d_ffn=24, d_p=4, d_in=8, **options)
        model = dba.models.Classifier(config, 3, features=2, max_length=6).double().eval()
        rows = torch.randn(8, 2, dtype=torch.double)
        begin, end = torch.tensor([0, 2]), torch.tensor([2, 8])
        got = model(rows, dba.Sequences(begin, end, 8, plain=True, max_length=6))
        torch.testing.assert_close(got, model(rows, dba.Sequences(begin, end, 8)), rtol=1e-11, atol=1e-12)
    assert dba.Sequences.dense(2, 4).common_length == 4
    assert dba.Sequences(begin, end, 8, plain=True, max_length=6).common_length is None


def test_every_parameter_of_every_variant_has_a_gradient():
    """An unused one would break distributed training."""
    for options in ({}, {"form": "released", "z_update": "replace"}, {"z_update": "own"}, {"tied": True},
                    {"method": "softmax"}, {"compress_length": False}, {"norm_first": True, "norm": "batch"}):
        config = dba.models.ModelConfig(d=16, heads=2, d_ffn=24, d_p=4, d_in=8, **options)
        model = dba.models.DualEncoder(config, 3, vocabulary=7, max_length=9)
        model(torch.randint(7, (2, 9)), torch.randint(7, (2, 5))).square().sum().backward()
        assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_wrong_input_is_refused_in_words(tmp_path):
    with pytest.raises(FileNotFoundError, match="name the folder of a run"):
        dba.load(tmp_path)
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="no config, encoding, details in its metadata"):
        dba.load(tmp_path)
    config = dba.models.ModelConfig(d=16, heads=2, d_in=8)
    with pytest.raises(ValueError, match="either vocabulary or features"):
        dba.models.Classifier(config, 3)
    with pytest.raises(ValueError, match="initialise must be one of"):
        dba.models.ModelConfig(initialise="zeros")
    with pytest.raises(ValueError, match="divisible by heads, got 16 and 3"):
        dba.models.ModelConfig(d=16, heads=3)
    for options, sentence in (
        ({"method_options": "block=4"}, 'method "dba" has no options of its own, got "block=4"; leave'),
        ({"method": "softmax", "method_options": "block=4"}, 'method "softmax" has no options of its own'),
        ({"method": "local", "method_options": {"block": 4}}, 'must be a text, got .*; write "block=4"'),
        ({"method": "local", "method_options": "block"}, 'must be written name=value, .*, got "block"'),
        ({"method": "local", "method_options": "block=4,block =5"}, "option block is given twice"),
        ({"bias": "no"}, "bias must be True or False, got 'no'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            dba.models.ModelConfig(**options)
    changed = dba.models.ModelConfig(d=16, heads=2, d_in=8)
    changed.method_options = "block=4"
    linformer = dba.models.ModelConfig(d=16, heads=2, method="linformer")
    for wrong, length, sentence in ((changed, 8, "has no options of its own"),
                                    (linformer, 0, "linformer has parameters for every position; give max_length"),
                                    (linformer, -3, "max_length must be 1 or more, got -3")):
        with pytest.raises(ValueError, match=sentence):
            dba.models.Encoder(wrong, length)
    with pytest.raises(ValueError, match="Encoder: x must be a tensor, got list"):
        dba.models.Encoder(config)([[1.0]])
    model = dba.models.Classifier(config, 3, vocabulary=7, max_length=5)
    with pytest.raises(ValueError, match="expected 8, got 10"):
        model(torch.zeros(2, 5, dtype=torch.long), dba.Sequences.from_lengths(torch.tensor([4, 2]), 4))
    for tokens, sentence in ((torch.zeros(1, 4), "must hold integers"),
                             (torch.full((1, 4), 7), r"must lie in \[0, 7\)"),
                             (torch.zeros(1, 6, dtype=torch.long), "at most 5 tokens")):
        with pytest.raises(ValueError, match=sentence):
            model(tokens)
    with pytest.raises(ValueError, match="does not know how examples become numbers"):
        model.predict(["a"])
    model.encoding = dba.models.Encoding("tokens", ["a", "b", "c"])
    with pytest.raises(ValueError, match="got one text; put it into a list"):
        model.predict("text")
    with pytest.raises(ValueError, match="a pair of texts, got 'ab'"):
        dba.models.Encoding("pairs", ["a"]).batch(["ab"])
    for series, sentence in (([[float("inf")]], "finite numbers"), ([[1.0, 2.0]], r"shape \(time, 1\)")):
        with pytest.raises(ValueError, match=sentence):
            dba.models.Encoding("series", ["a"], channels=1).batch([series])
    with pytest.raises(ValueError, match="must hold integers alone"):
        dba.models.Tokeniser("integer", integers=5).encode("1 two 3")


def test_models_that_only_the_program_knows_are_refused_in_words(tmp_path):
    config = dba.models.ModelConfig(d=16, heads=2, d_in=8)
    model = dba.models.Classifier(config, 2, vocabulary=258, max_length=5)
    model.encoding = dba.models.Encoding("tokens", ["no", "yes"])
    file = tmp_path / "model.safetensors"
    model.save(file)
    assert dba.load(tmp_path).labels == ["no", "yes"]
    with safetensors.safe_open(file, "pt") as content:
        metadata = content.metadata()
    for before, after, sentence in (("method: \"dba\"", "method: \"lunar\"", 'nearest known one is "luna"'),
                                    ("  d: 16", "  d: 16\n  depth: 3", "does not know model.depth")):
        changed = {**metadata, "config": metadata["config"].replace(before, after)}
        safetensors.torch.save_file(model.state_dict(), tmp_path / "other.safetensors", changed)
        with pytest.raises(ValueError, match=sentence):
            dba.load(tmp_path / "other.safetensors")


def test_settings_are_read_as_they_were_written():
    settings = {"seed": 1, "data": {"train": 'a "b" \\ é\t', "cls": False, "x": ""},
                "optimiser": {"betas": [0.9, 0.98]}, "schedule": {"milestones": [], "lr": 1e-05}}
    assert read_settings(write_settings(settings), "test") == settings
    assert read_settings('a: "\\x09\\\\x41"\nb: gelu\n# comment\n', "test") == {"a": "\t\\x41", "b": "gelu"}
    with pytest.raises(ValueError, match="test:1: expected"):
        read_settings("nonsense", "test")


def test_what_leaves_out_no_symbol_or_stands_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"leave_out must hold symbols below 10 \(scheme integer\), got \[10\]"):
        dba.models.Tokeniser(scheme="integer", integers=10, cls=True, leave_out=[10])
    with pytest.raises(ValueError, match="leave_out must hold symbols below 0"):
        dba.models.Tokeniser(scheme="whitespace", leave_out=[0])
    layer = PositionEmbedding(8, "learned", max_length=4)
    x, sequences = torch.zeros(3, 8), dba.Sequences.packed(torch.tensor([0, 2, 3]), 3)
    for wrong in (torch.zeros(3), torch.zeros(3, dtype=torch.bool), torch.zeros(2, dtype=torch.long)):
        with pytest.raises(ValueError, match="positions must be an integer for each of the 3 rows"):
            layer(x, sequences, wrong)
    with pytest.raises((ValueError, RuntimeError), match="left-out ones count"):
        layer(x, sequences, torch.tensor([0, 4, 1]))
    with pytest.raises((ValueError, RuntimeError), match="must count from 0"):
        layer(x, sequences, torch.tensor([0, -1, 1]))
