"""The figures: what they draw of runs, measurements, predictions and attention weights."""

import itertools
import json
import re

import numpy
import pytest
import torch
from figure_files import ROOT, bench_report, closed_figures, run, write_result, write_run, write_ts  # noqa: F401
from matplotlib import pyplot
from matplotlib.text import Text

import dba
import dba.figures.look
from dba import figures
from dba.figures.labels import label_points


def points(line):
    return [tuple(map(float, point)) for point in line.get_xydata()]


def test_learning_curves_hold_the_numbers_of_every_run(run, tmp_path):
    second = write_run(tmp_path / "second", [0.1, 0.9])
    axes = figures.learning_curves([run, second])
    lines = {line.get_label(): points(line) for line in axes.lines}
    assert lines == {
        "first, train": [(10, 0.2), (20, 0.4), (30, 0.6)],
        "first, validation": [(10, 0.1), (20, 0.2), (30, 0.3)],
        "second, train": [(10, 0.1), (20, 0.9)],
        "second, validation": [(10, 0.05), (20, 0.45)],
    }
    assert axes.lines[0].get_color() == axes.lines[1].get_color() != axes.lines[2].get_color()
    assert axes.get_xlabel() == "update" and axes.get_ylabel() == "accuracy"
    own = pyplot.subplots()[1]
    assert figures.learning_curves(run, "loss", parts=["validation"], ax=own) is own
    assert points(own.lines[0]) == [(10, 2.0), (20, 1.0), (30, pytest.approx(2 / 3))]


def test_learning_curves_of_a_crashed_run_and_errors(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "pa')
    assert len(figures.learning_curves(run).lines) == 2
    with pytest.raises(ValueError, match="beauty.*macro_f1"):
        figures.learning_curves(run, "beauty")
    with pytest.raises(FileNotFoundError, match="dba train"):
        figures.learning_curves(run / "nowhere")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "part": "train"}\n')
    with pytest.raises(ValueError, match="metrics.jsonl:1"):
        figures.read_metrics(run)


def test_time_and_memory_over_length(tmp_path):
    report = bench_report()
    axes = figures.over_length(report)
    lines = {line.get_label(): points(line) for line in axes.lines}
    assert [length for length, _ in lines["dba"]] == [64, 256, 1024]
    assert lines["softmax"][-1] == (1024, pytest.approx(1e-3 * 1024**2))
    assert axes.get_xscale() == axes.get_yscale() == "log"
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(1.2e-3 * 1024**2)
    memory = figures.over_length(report, "memory", "forward+backward")
    assert points(memory.lines[0])[0] == (64, pytest.approx(0.064))
    path = tmp_path / "layer.json"
    path.write_text(json.dumps(report))
    panels = figures.bench_panels(path)
    assert panels.shape == (2, 2) and panels[0][1].get_title() == "forward+backward"
    assert figures.bench_panels(path, "forward").shape == (2, 1)
    for wrong, match in (({"what": "sideways"}, "forward"), ({"dtype": "int4"}, "float32"), ({"cache": "cold"}, "cold"),
                         ({"value": "beauty"}, "memory")):
        with pytest.raises(ValueError, match=match):
            figures.over_length(report, **wrong)
    path.write_text("{}")
    with pytest.raises(ValueError, match="dba bench layer --json"):
        figures.bench_panels(path)


def cells(axes):
    return {text.get_position()[::-1]: text.get_text() for text in axes.texts}


def test_lra_curves_hold_the_numbers_of_every_result(tmp_path):
    folder = tmp_path / "lra"
    write_result(folder, "image", "dba")
    write_result(folder, "image", "dba", seed=2, lift=0.125)
    write_result(folder, "image", "softmax")
    write_result(folder, "listops", "softmax")
    write_result(folder, "image", "dba", variant="short", lift=0.25)
    axes = figures.lra_curves(folder)
    assert axes.shape == (2, 3)
    assert [row[0].get_title(loc="left") for row in axes] == ["ListOps", "Image"]
    loss, accuracy, against = axes[1]
    assert [points(line) for line in loss.lines] == [[(10, 2), (20, 1), (30, 0.5)], [(10, 2), (20, 1), (30, 0.625)],
                                                     [(10, 2), (20, 1), (30, 0.5)]]
    assert [points(line) for line in accuracy.lines] == [[(15, 25), (30, 50)], [(15, 37.5), (30, 62.5)],
                                                         [(15, 25), (30, 50)]]
    assert points(against.lines[0]) == [(1.5, 25), (0.5, 50)]  # the loss half way between updates 10 and 20
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == ["dba, 2 seeds", "softmax"]
    assert loss.lines[0].get_color() == loss.lines[1].get_color() != loss.lines[2].get_color()
    short = figures.lra_curves(folder, tasks=["image"], variant="short")
    assert short.shape == (1, 3) and points(short[0][1].lines[0]) == [(15, 50), (30, 75)]
    with pytest.warns(UserWarning, match="no result of listops with dba; the picture does without"):
        figures.lra_curves(folder, methods=["dba", "softmax"])
    with pytest.raises(ValueError, match="no results of method 'dbaa'; the folder holds dba, softmax"):
        figures.lra_curves(folder, methods=["dbaa", "softmax"])
    for seed, digest in ((1, "0a"), (2, "0b")):
        file = folder / f"image-dba--{seed}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "data_digests": {"training": digest}}))
    with pytest.warns(UserWarning, match="results of image were made on different training data"):
        figures.lra_curves(folder)
    for seed, changed in ((1, []), (2, ["model.layers=1"])):
        file = folder / f"image-dba--{seed}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "data_digests": {}, "changed": changed}))
    with pytest.warns(UserWarning, match="results of image were made with different settings"):
        figures.lra_curves(folder)
    with pytest.raises(ValueError, match=r"no whole runs of text; .* whole runs \(image with dba, softmax; listops "
                                         r"with softmax\) and runs of variant short \(image with dba\)$"):
        figures.lra_curves(folder, tasks=["text"])
    (folder / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="broken.json"):
        figures.lra_curves(folder)
    with pytest.raises(FileNotFoundError, match="dba reproduce lra"):
        figures.lra_curves(tmp_path / "nowhere")


@pytest.mark.parametrize("count", [2, 3, 4, 18, 25])
def test_lra_curves_tell_many_methods_apart_and_clip_nothing(tmp_path, count):
    for index in range(count):
        write_result(tmp_path, "image", f"long_method_{index:02}", lift=index / 64)
    write_result(tmp_path, "text", "long_method_00")
    axes = figures.lra_curves(tmp_path)
    figure = axes[0][0].figure
    figure.canvas.draw()
    for column, look in enumerate(("get_linestyle", "get_linestyle", "get_marker")):
        lines = axes[1][column].lines
        # get_linestyle does not tell dashes apart.
        assert len({(line.get_color(), getattr(line, look)(), str(line._dash_pattern)) for line in lines}) == count
    legend = axes[1][1 if count < 4 else 2].get_legend()
    assert len(legend.get_texts()) == count
    for part in [*axes.flat, legend]:
        box = part.get_tightbbox()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    if count < 4:
        assert tuple(figure.get_size_inches()) == (12, 6.8)
    else:
        assert not any(legend.get_window_extent().overlaps(ax.get_window_extent()) for ax in axes.flat)
    widths = [ax.get_window_extent().width for ax in axes.flat]
    assert min(widths) > 300 and min(ax.get_window_extent().height for ax in axes.flat) > 240


def test_lra_curves_of_shortened_runs_alone_name_the_variant(tmp_path):
    for method in ("dba", "softmax"):
        write_result(tmp_path, "image", method, variant="updates2")
    with pytest.raises(ValueError) as error:
        figures.lra_curves(tmp_path)
    assert str(error.value) == ("dba.figures.lra_curves: there are no whole runs; the folder holds runs of variant "
                                "updates2 (image with dba, softmax); use --variant updates2 (in Python "
                                "variant='updates2')")
    for method in "abcdefg":
        write_result(tmp_path, "text", method)
    with pytest.raises(ValueError, match=r"no runs of variant short; .*text with 7 methods.*; use no --variant or "
                                         r"--variant updates2 \(in Python variant='' or 'updates2'\)$"):
        figures.lra_curves(tmp_path, variant="short")
    with pytest.raises(ValueError, match=r"no whole runs with softmax; .*; use --variant updates2 \(in"):
        figures.lra_curves(tmp_path, methods=["softmax"])
    with pytest.raises(ValueError, match=r"no whole runs of text with softmax; .* \(image with dba, softmax\)$"):
        figures.lra_curves(tmp_path, tasks=["text"], methods=["softmax"])
    write_result(tmp_path, "image", "a")
    assert figures.lra_curves(tmp_path, methods=["b"]).shape == (1, 3)  # of text alone, image has no b


def test_confusion_matrix_of_a_run_of_labels_and_of_counts(run, tmp_path):
    axes = figures.confusion_matrix(run)
    assert cells(axes) == {(0, 0): "3", (0, 1): "1", (1, 1): "4"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog"]
    assert numpy.allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 1]])
    assert "87.5%" in axes.get_title()
    assert "100.0%" in figures.confusion_matrix(run, part="validation").get_title()
    axes = figures.confusion_matrix(["b", "a", "b"], ["b", "b", "b"], share=False)
    assert cells(axes) == {(0, 1): "1", (1, 1): "2"} and axes.images[0].get_array().max() == 2
    evaluated = tmp_path / "evaluated.json"
    evaluated.write_text(json.dumps({"file": "x", "model": {"confusion": [[1, 2], [3, 4]]}}))
    axes = figures.confusion_matrix(evaluated, classes=["no", "yes"])
    assert cells(axes)[1, 0] == "3" and axes.get_yticklabels()[1].get_text() == "yes"
    assert cells(figures.confusion_matrix(torch.eye(3, dtype=torch.long)))[2, 2] == "1"
    assert not figures.confusion_matrix(numpy.eye(30, dtype=int)).texts


def test_confusion_matrix_errors(run, tmp_path):
    with pytest.raises(ValueError, match="predicted"):
        figures.confusion_matrix([1, 2, 3])
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        figures.confusion_matrix([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="2 classes"):
        figures.confusion_matrix(run, classes=["one"])
    with pytest.raises(ValueError, match="report.json"):
        figures.confusion_matrix(tmp_path / "nowhere")
    (run / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="'test'"):
        figures.confusion_matrix(run)


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(1)
    attention = dba.DBAttention(16, 2, d_p=4, d_in=8)
    with torch.no_grad():
        return attention(*3 * [torch.randn(2, 9, 16)], need_weights=True)[1]


def test_weights_of_an_attention_as_maps_and_as_images(weights):
    axes = figures.compression(weights, "w_c", sequence=1, head=0)
    drawn = axes.images[0].get_array()
    assert drawn.shape == (4, 9) and numpy.allclose(drawn, weights.w_c[1, 0], atol=1e-7)
    assert numpy.allclose(drawn.sum(1), 1, atol=1e-5)
    mean = figures.reconstruction(weights).images[0].get_array()
    assert numpy.allclose(mean, weights.w_r_prime[0].mean(0).T, atol=1e-7)
    assert numpy.allclose(mean.sum(0), 1, atol=1e-5)  # every token shares itself out
    images = figures.compression(weights, side=3, head=1)
    assert len(images) == 4
    assert numpy.allclose(images[2].images[0].get_array(), weights.w_r[0, 1, 2].view(3, 3), atol=1e-7)
    assert figures.reconstruction(weights, side=(1, 9))[0].images[0].get_array().shape == (1, 9)
    assert figures.compression(weights, length=5).images[0].get_array().shape == (4, 5)
    negative = figures.compression(-weights.w_r, head=0).images[0]
    assert negative.norm.vmin == -negative.norm.vmax < 0


def test_weights_errors(weights):
    with pytest.raises(ValueError, match="reconstruction"):
        figures.compression(weights, "w_r_prime")
    with pytest.raises(ValueError, match="need_weights"):
        figures.reconstruction({})
    with pytest.raises(ValueError, match="9 pixels"):
        figures.compression(weights, side=2)
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        figures.compression(weights, head=2)
    with pytest.raises(ValueError, match="B, H, d_p, n"):
        figures.compression(torch.ones(3, 3))
    with pytest.raises(ValueError, match="ax"):
        figures.compression(weights, side=3, ax=pyplot.subplots()[1])


def test_the_same_figure_gives_the_same_svg(run, tmp_path):
    for name in ("a.svg", "b.svg"):
        dba.figures.look.save(figures.confusion_matrix(run).figure, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def efficiency_report():
    cells = []
    for method, speed, memory in (("softmax:math", 1.0, 1.0), ("softmax", 2.0, 0.5), ("dba", 6.0, 0.1),
                                  ("dba:released", 7.0, 0.1), ("flowformer", 3.0, 0.2), ("luna", 5.0, 0.125)):
        for length in (512, 4096):
            cells.append({"method": method, "length": length, "pass": "training", "status": "ok",
                          "speed_vs_unfused": speed, "memory_vs_unfused": memory, "speed_vs_fused": speed / 2,
                          "memory_vs_fused": 2 * memory})
    cells.append({"method": "yoso", "length": 512, "pass": "training", "status": "skipped", "reason": "too long"})
    return {"dba_efficiency": 1, "machine": {"GPU": "a GPU"}, "device": "cuda", "dtype": "autocast", "batch": 32,
            "lra_average": {"source": "paper",
                            "percent": {"softmax": 58.57, "dba": 62.21, "luna": 61.46, "yoso": 59.2}},
            "cells": cells}


def test_efficiency_panels_show_speed_accuracy_and_memory_as_area(tmp_path):
    (tmp_path / "cuda-autocast-batch32.json").write_text(json.dumps(efficiency_report()))
    axes = figures.efficiency_panels(tmp_path)
    assert [ax.get_title() for ax in axes] == ["512 tokens", "4,096 tokens"]
    drawn = {text.get_text(): text.xy for text in axes[0].texts}
    # Without an average (Flowformer), beside the yardstick (fused softmax), as a variant or unmeasured: left out.
    assert drawn == {"softmax:math": (1.0, 58.57), "dba": (6.0, 62.21), "luna": (5.0, 61.46)}
    areas = [collection.get_sizes()[0] for collection in axes[0].collections]
    assert areas[1] / areas[0] == pytest.approx(0.1) and areas[2] / areas[0] == pytest.approx(0.125)
    assert "of the paper" in axes[0].get_ylabel() and "a GPU" in axes[0].figure.get_suptitle()
    fused = figures.efficiency_panels(tmp_path, [4096], baseline="fused")
    assert {text.get_text(): text.xy[0] for text in fused[0].texts} == {"softmax": 1.0, "dba": 3.0, "luna": 2.5}
    with pytest.raises(ValueError, match=r"length 99 .* the lengths \[512, 4096\]"):
        figures.efficiency_panels(tmp_path, [99])
    with pytest.raises(FileNotFoundError, match="dba reproduce efficiency"):
        figures.read_efficiency(tmp_path / "..")
    (tmp_path / "cuda-autocast-batch32.json").write_text("{}")
    with pytest.raises(ValueError, match="no result of dba reproduce efficiency"):
        figures.read_efficiency(tmp_path)


def boxes(ax):
    """Of the names, without their lines; the figure has been drawn."""
    return [Text.get_window_extent(text) for text in ax.texts]


def expect_apart(axes):
    for ax in axes:
        drawn, room = boxes(ax), ax.get_window_extent()
        assert not any(a.overlaps(b) for a, b in itertools.combinations(drawn, 2))
        assert all(box.x0 >= room.x0 and box.y0 >= room.y0 and box.x1 <= room.x1 and box.y1 <= room.y1 for box in drawn)


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3])
def test_efficiency_panels_write_no_name_over_another(tmp_path, spread):
    """Twenty methods at one point, nearly, and in a crowd, with one far off, so that all others stand at an edge."""
    names, random = dba.zoo.names(), numpy.random.default_rng(1)
    report = efficiency_report()
    report["lra_average"]["percent"] = {name: 55 + spread * random.normal() for name in names} | {"luna": 61.0}
    speeds = {name: 1 + spread * random.random() for name in names} | {"luna": 40.0}
    report["cells"] = [{"method": "softmax:math" if name == "softmax" else name, "length": length, "pass": "training",
                        "status": "ok", "speed_vs_unfused": speeds[name], "memory_vs_unfused": random.random()}
                       for length in (512, 4096) for name in names]
    (tmp_path / "a.json").write_text(json.dumps(report))
    axes = figures.efficiency_panels(tmp_path)
    assert all(len(ax.texts) == 20 for ax in axes)
    for dpi in (100, 72, 200):  # letters of an SVG are measured in 72
        axes[0].figure.set_dpi(dpi)
        axes[0].figure.canvas.draw()
        expect_apart(axes)
    again = figures.efficiency_panels(tmp_path)
    assert [text.get_position() for text in again[0].texts] == [text.get_position() for text in axes[0].texts]


def test_names_stand_at_their_points_or_have_a_line_to_them():
    ax = pyplot.subplots()[1]
    points = [(0.1, 0.5), (0.1, 0.5), (0.1, 0.51), (0.9, 0.9)]
    ax.scatter(*zip(*points))
    label_points(ax, ["first method", "second method", "third method", "alone"], points, [400.0] * 4)
    ax.figure.canvas.draw()
    expect_apart([ax])
    for text, point, box in zip(ax.texts, points, boxes(ax), strict=True):
        x, y = ax.transData.transform(point)
        gap = numpy.hypot(max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0)) * 72 / ax.figure.dpi
        assert text.xy == point and (text.arrow_patch is not None or gap < 6)
    assert ax.texts[3].get_position() == (0, 0) and ax.texts[3].arrow_patch is None
    assert [text.arrow_patch for text in ax.texts].count(None) < 4


def test_the_committed_figure_is_what_the_program_draws_of_the_files_beside_it(tmp_path):
    folder = ROOT / "results" / "efficiency"
    axes = figures.efficiency_panels(folder)
    axes[0].figure.canvas.draw()
    expect_apart(axes)
    dba.figures.look.save(axes[0].figure, tmp_path / "figure1.svg")
    # Letters are outlines, with the text beside them as comments. What stands at a tick is matplotlib's.
    drawn, committed = (re.findall("<!-- (.*[a-z].*) -->", (path / "figure1.svg").read_text())
                        for path in (tmp_path, folder))
    assert drawn == committed and "longformer" in drawn


def test_mean_series_leave_out_what_is_missing(tmp_path):
    nan = float("nan")
    series = [numpy.array([[1, 10], [3, 20], [5, nan]]), numpy.array([[3, 30]]), numpy.array([[7, 7]])]
    read, labels = figures.read_ts(write_ts(tmp_path / "a.ts", series, ["up", "up", "down"]))
    assert labels == ["up", "up", "down"] and read[0].shape == (3, 2)
    means = figures.mean_series(read, labels)
    numpy.testing.assert_allclose(means["up"], [[2, 20], [3, 20], [5, nan]])
    numpy.testing.assert_allclose(means["down"], [[7, 7]])
    (tmp_path / "b.ts").write_text("@classLabel true a\n@data\n1,two:a\n")
    with pytest.raises(ValueError, match="b.ts:3.*dba data check"):
        figures.read_ts(tmp_path / "b.ts")
    (tmp_path / "c.ts").write_text("@classLabel false\n@data\n1,2:3,4\n")
    assert figures.read_ts(tmp_path / "c.ts")[1] == [""]


def test_rows_of_a_labelled_file_may_go_without_a_label_as_in_the_program(tmp_path):
    file = tmp_path / "a.ts"
    file.write_text("@dimensions 2\n@classLabel true Up 3\n@data\n1,2:3,4:up\n1,2:3,4\n1,2:3,4:?\n5:3\n5:3:3\n")
    series, labels = figures.read_ts(file)
    assert labels == ["Up", "", "", "", "3"] and {one.shape for one in series} == {(2, 2), (1, 2)}
    file.write_text("@univariate true\n@classLabel true a b\n@data\n1,2\n3,4:b\n")
    series, labels = figures.read_ts(file)
    assert labels == ["", "b"] and series[0].tolist() == [[1], [2]]
    for rows, sentence in (("1,2:3,4:a\n1,2:a", "a.ts:4: the series has 1 channels, those before it 2"),
                           ("1,2:3,4:c", "a.ts:3: the label 'c' is none of the 2 classes"),
                           ("1,2:3:a", "must have one length"), ("1,,2:1,2,3:a", "a.ts:3: not a series"),
                           ("", "holds no series; `dba data check")):
        file.write_text(f"@classLabel true a b\n@data\n{rows}\n")
        with pytest.raises(ValueError, match=sentence):
            figures.read_ts(file)
    for name, text, sentence in (("a.jsonl", '{"text": "a"}', "a.jsonl:1: must be a JSON object with series"),
                                 ("b.jsonl", '{"series": [[1], [2, 3]]}', "b.jsonl:1: no series of numbers"),
                                 ("c.csv", "case,time,x\n1,0", "c.csv:2: the row has 2 fields, the header 3"),
                                 ("d.csv", "case,time,x\n1,0,y", "d.csv:2: no row of numbers")):
        (tmp_path / name).write_text(text + "\n")
        with pytest.raises(ValueError, match=sentence):
            figures.read_series(tmp_path / name)
    (tmp_path / "e.csv").write_text("who,when,x,class\n7,0,1,true\n7,1,2,true\n8,0,3,\n")
    columns = {"case_column": "who", "time_column": "when", "label_column": "class", "format": "csv_long"}
    series, labels = figures.read_series(tmp_path / "e.csv", columns)
    assert [one.tolist() for one in series] == [[[1], [2]], [[3]]] and labels == ["true", ""]
    (tmp_path / "f.jsonl").write_text('{"series": [1, null], "label": 2.50}\n\n{"series": [3], "label": true}\n')
    series, labels = figures.read_series(tmp_path / "f.jsonl")
    assert labels == ["2.50", "true"] and series[1].tolist() == [[3]] and numpy.isnan(series[0][1, 0])
