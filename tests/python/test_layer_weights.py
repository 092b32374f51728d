"""The factors of a model's layers, and the examples that `dba plot weights` reads."""

import json
import pathlib
import sys

import numpy
import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))

import dba  # noqa: E402
from dba import figures  # noqa: E402
from dba.figures.of_model import draw_weights, read_example  # noqa: E402

PAIRS = {"text_column": "text", "second_text_column": "more"}


@pytest.mark.parametrize("options", [{}, {"tied": True, "normalise": "linear"}, {"z_update": "own"}], ids=str)
def test_weights_of_a_models_layer_are_those_it_computes_with(options):
    """W_r' P' W_c'ᵀ on the values is what the layer puts out, for every place of a stack of two."""
    torch.manual_seed(2)
    config = dba.models.ModelConfig(d=16, heads=2, layers=2, d_ffn=16, d_p=4, d_in=8, **options)
    model = dba.models.Classifier(config, 2, features=1, max_length=7)
    with pytest.raises(ValueError, match="does not know how examples become numbers"):
        figures.layer_weights(model, [[[1.0]]])
    model.encoding = dba.models.Encoding("series", ["a", "b"], channels=1)
    examples = [[[float(step)] for step in range(length)] for length in (7, 3)]
    for place in (0, 1):
        seen = []
        attention = model.backbone.encoder.layers[place % len(model.backbone.encoder.layers)].attention
        hook = attention.register_forward_hook(lambda _, arguments, result: seen.append((arguments[0], result[0])))
        factors = figures.layer_weights(model, examples, place)
        hook.remove()
        rows, answers = seen[place if options.get("tied") else 0]
        values = attention.w_v(rows[:7]).unflatten(1, (2, -1)).transpose(0, 1)
        mixed = factors.w_r_prime[0] @ factors.p[0] @ factors.w_c_prime[0].transpose(1, 2) @ values
        torch.testing.assert_close(attention.w_o(mixed.transpose(0, 1).flatten(1)), answers[:7], rtol=1e-4, atol=1e-5)
    assert model.training


def test_examples_are_read_as_the_program_reads_them(tmp_path):
    path = tmp_path / "examples.jsonl"
    records = [{"text": "a", "more": "b"}, {"text1": "c", "text2": "d"}, {"series": [[1, None]]}, {"pixels": [3, 4]}]
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    assert read_example(str(path), 0) == "a" and read_example(str(path), 0, PAIRS) == ("a", "b")
    assert read_example(str(path), 0, {"text_column": "more"}) == "b" and read_example(str(path), 1) == ("c", "d")
    assert numpy.array_equal(read_example(str(path), 2), [[1, numpy.nan]], equal_nan=True)
    assert read_example(str(path), 3) == [3, 4]
    with pytest.raises(ValueError, match="beyond its last example"):
        read_example(str(path), 4)
    with pytest.raises(ValueError, match="must be a JSON object with text"):
        read_example(str(path), 1, PAIRS)


def test_tokens_that_are_no_grid_are_not_drawn_as_pixels(tmp_path):
    """Of nine pixels three are left out: six tokens are no 3 × 3, and are drawn one beside the other."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib").use("Agg")
    torch.manual_seed(2)
    config = dba.models.ModelConfig(d=16, heads=2, layers=1, d_ffn=16, d_p=4, d_in=8)
    model = dba.models.Classifier(config, 2, vocabulary=5, max_length=9)
    input = tmp_path / "pixels.jsonl"
    input.write_text(json.dumps({"pixels": [0, 1, 2, 3, 4, 0, 1, 0, 3]}) + "\n")

    def drawn(leave_out, side):
        tokeniser = dba.models.Tokeniser("integer", integers=5, leave_out=leave_out)
        model.encoding = dba.models.Encoding("tokens", ["a", "b"], tokeniser=tokeniser)
        model.save(tmp_path / "model.safetensors")
        figure = draw_weights(tmp_path / "model.safetensors", str(input), 0, 0, None, "w_r", side)
        return numpy.asarray(figure.axes[0].images[0].get_array()).shape

    assert drawn([], 3) == (3, 3)
    with pytest.raises(ValueError, match=r"dba plot weights: .*data\.leave_out.*without --side"):
        drawn([0], 3)
    assert drawn([0], None) == (4, 6)
