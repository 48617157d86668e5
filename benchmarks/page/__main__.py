"""Latency of the what-if page: first answer cold and warm, and moves of a slider.

    python -m benchmarks.page [--pyodide pyodide-314.0.7.tgz] [--drag 5]

It needs Playwright (in the extra `test`) and the system's Chromium. Cold is a browser that never saw the page; warm
is the same browser's next visit. The page's own question was answered by the build; a link's is answered by Python in
the browser. Every move of a slider is timed from its event to the new answer on the page. A drag moves a slider over
several positions; from its second move on, the page may have computed the answer ahead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from ds_advise.advisor.page.build import build_page

from tests.advisor.page.browser import FIRST_ANSWER, WHOLE_ANSWER, browser, served

QUESTIONS = (
    "model=Qwen2.5-14B&gpus=2x32GB",
    "model=Qwen2.5-7B&gpus=4x24GB&method=lora",
    "model=Llama-3.1-70B&gpus=8x8xH100-SXM5",
    "model=Mixtral-8x7B&gpus=8xA100-SXM4-80GB&ram=1TB",
)
SLIDERS = ("seq-len", "count", "micro-batch", "ram")

_BETWEEN_MOVES_MS = 200
"""Between two positions of a hand that drags slowly enough to read the answers."""

_MOVE = """async ([name, step]) => {
  const box = document.querySelector(`[data-slider=${name}] input[type=range]`);
  box.value = (+box.value + step) % (+box.max + 1);
  const began = performance.now();
  const shown = new Promise((resolve) => new MutationObserver((_, watcher) => { watcher.disconnect(); resolve(); })
    .observe(document.getElementById("summary"), { childList: true }));
  box.dispatchEvent(new Event("input"));
  await shown;
  await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pyodide", type=Path, help="the npm package's file, or a folder; by default npm fetches it")
    parser.add_argument("--drag", type=int, default=5, help="moves of each drag")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build_page(Path(folder) / "page", pyodide=arguments.pyodide)
        with served(Path(folder) / "page") as address, browser() as opened:
            print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            for name, fragment in (("the page's own question", ""), ("a link's question", f"#{QUESTIONS[1]}")):
                page = opened.new_context(viewport={"width": 1280, "height": 900}).new_page()
                for visit in ("cold", "warm", "warm", "warm"):
                    print(f"first answer, {name}, {visit}: {_first_answer(page, address + fragment):.2f} s")
                    page.wait_for_timeout(3000)  # the browser keeps the page's files for the next visit
            _drags(page, address, arguments.drag)
            print(f"load average {os.getloadavg()[0]:.1f}")


def _first_answer(page: Any, address: str) -> float:
    """Seconds from opening an address to its answer on the page; ends when the answer is whole."""
    began = time.perf_counter()
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(FIRST_ANSWER, timeout=120_000)
    taken = time.perf_counter() - began
    assert page.is_hidden("#error"), page.text_content("#error")
    page.wait_for_selector(WHOLE_ANSWER, timeout=120_000)
    return taken


def _drags(page: Any, address: str, moves: int) -> None:
    """One drag of every slider for every question."""
    first_ms: list[float] = []
    later_ms: list[float] = []
    for question in QUESTIONS:
        _first_answer(page, f"{address}#{question}")
        for name in SLIDERS:
            for move in range(moves):
                page.wait_for_timeout(_BETWEEN_MOVES_MS)
                (later_ms if move else first_ms).append(page.evaluate(_MOVE, [name, 1]))
    _print_moves("first moves", first_ms)
    _print_moves("next moves", later_ms)
    _print_moves("all moves", first_ms + later_ms)


def _print_moves(title: str, taken_ms: list[float]) -> None:
    share = sum(taken <= 150 for taken in taken_ms) / len(taken_ms)
    print(
        f"{title:12} median {statistics.median(taken_ms):4.0f} ms, worst {max(taken_ms):4.0f} ms of {len(taken_ms)}; "
        f"{share:.0%} within 150 ms"
    )


if __name__ == "__main__":
    main()
