"""The manual as a site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_manual_is_built_and_every_link_in_it_leads_somewhere(tmp_path: Path) -> None:
    """Strictly: a page that the navigation lacks or a link to nothing fails. Every page is named in the navigation."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    named = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in named, page.name
        assert (tmp_path / "site" / page.stem / "index.html").exists() or page.stem == "index"
