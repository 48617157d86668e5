"""This machine's own speeds: products, memory, links, collectives, the optimizer on the host, NVMe."""

from .result import BENCH_VERSION, BenchResult, Figure, Skipped, bench_from_json
from .run import bench

__all__ = ["BENCH_VERSION", "BenchResult", "Figure", "Skipped", "bench", "bench_from_json"]
