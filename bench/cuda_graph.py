"""A call's work on the GPU as a CUDA graph, for benchmarks that leave out the time of handing it over."""

import torch


def captured(call, repeats=1):
    """A graph of so many calls, recorded after some on a stream of their own, as PyTorch asks for. RuntimeError where the
    call waits for the GPU on its way."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    return graph
