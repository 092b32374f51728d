"""The parts of bench/gpu_table.py: the layers that are compared, what is exact, what it costs, and the table."""
