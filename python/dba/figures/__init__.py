"""Pictures of runs, measurements and attention, drawn with matplotlib. Every function returns the axes it drew on.

    learning_curves    accuracy or loss over the updates of one run or several
    over_length        time or memory over the sequence length, from `dba bench … --json`
    bench_panels       both of them, for every pass that was measured
    lra_curves         training loss and validation accuracy, from the results of `dba reproduce lra`
    efficiency_panels  speed, memory and accuracy of the attentions, from `dba reproduce efficiency`
    confusion_matrix   true classes against predicted ones, from a run or from arrays
    series_picture     a run on time series: mean series per class, confusion matrix, compression weights
    compression        how much each slot takes of each token (W_r, W_c, W_c'): a map, or images for pixels
    reconstruction     how much each token takes of each slot (W_r')
    layer_weights      the factors of one layer of a trained model, for the two above

Nothing here but the last imports torch, so that `bench/plot` does without. Tensors are taken as they are, and so is
whatever NumPy makes an array of.
`dba plot` draws the same from a shell.
"""

from typing import Any

from .confusion import confusion_matrix
from .curves import learning_curves, read_metrics
from .efficiency import efficiency_panels, read_efficiency
from .lengths import bench_panels, over_length, read_bench
from .lra import lra_curves, read_results
from .series import mean_series, series_picture
from .series_files import read_series, read_ts
from .weights import compression, reconstruction

__all__ = [
    "bench_panels",
    "compression",
    "confusion_matrix",
    "efficiency_panels",
    "layer_weights",
    "learning_curves",
    "lra_curves",
    "mean_series",
    "over_length",
    "read_bench",
    "read_efficiency",
    "read_metrics",
    "read_results",
    "read_series",
    "read_ts",
    "reconstruction",
    "series_picture",
]


def __getattr__(name: str) -> Any:
    if name == "layer_weights":
        from .of_model import layer_weights

        return layer_weights
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
