"""ds-advise: which DeepSpeed configuration fits, how fast it runs, and the fastest that fits.

The root of the repository is this package, `ds_advise`; its folders are the subpackages (see the table in README.md).
"""

from __future__ import annotations

__version__ = "0.1.0"
