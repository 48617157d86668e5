"""The files of universal states that a load needs. Files are told by their names; nothing is unpickled.

`ds_to_universal` writes a folder for each parameter, with a file for each of its states. Of a missing file, stages 1
and 2 load no state, without a word; of a missing folder, no stage loads (0.19.8 checkpoint/universal_checkpoint.py
`load_hp_checkpoint_state`, runtime/zero/stage3.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from .checkpoint_layout import MODEL_STATES, UNIVERSAL_STATES, SavedStates

_WEIGHTS = "fp32.pt"
_MOMENTS = ("exp_avg.pt", "exp_avg_sq.pt")
_STEP = "step.pt"


def missing_universal(tag: str, saved: SavedStates, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, problem) of the files that universal states lack, by the parameters that the model states name.

    At stages 1 and 2, a parameter that never had a gradient has its weights alone; whether each file of its moments was
    lost is not known then.
    """
    inside = [name.removeprefix(f"{tag}/") for name in names if name.startswith(f"{tag}/")]
    if not any(map(MODEL_STATES.match, inside)):
        yield f"{tag}/mp_rank_00_model_states.pt", "is missing"
    if UNIVERSAL_STATES not in inside:
        yield f"{tag}/{UNIVERSAL_STATES}", "is missing"
    have = defaultdict[str, set[str]](set)
    for name in inside:
        folder, _, file = name.removeprefix("zero/").rpartition("/")
        have[folder].add(file)
    # The optimizer keeps a step for each parameter, or one for all in the file of what they share.
    states = {*_MOMENTS, *({_STEP} if any(_STEP in files for files in have.values()) else ())}
    for parameter in saved.shapes:
        if not (files := have.get(parameter, set())):
            yield f"{tag}/zero/{parameter}", "is missing"
            continue
        needs_states = saved.stage == 3 or files & states
        needed = (_WEIGHTS, *(sorted(states) if needs_states else ()))
        yield from ((f"{tag}/zero/{parameter}/{file}", "is missing") for file in needed if file not in files)
