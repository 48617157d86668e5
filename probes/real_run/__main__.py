"""The entry of a rank process: `python -m ds_advise.probes.real_run FOLDER RANK PARENT WORKER` (`rank.py`)."""

from .rank import main

if __name__ == "__main__":
    main()
