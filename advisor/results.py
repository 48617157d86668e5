"""What `advise()` returns: an answer that shows itself at the prompt and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..ds_configs.files import ARGUMENTS, CONFIG_NAME, write_config
from ..estimators.errors import ConfigFileError
from ..estimators.json_form import to_json
from ..estimators.plan import PlainPyTorch, Strategy
from .answer.recommendation import Recommendation
from .answer.start import written_config
from .document.blocks import Document
from .plan_estimate import PlanEstimate, fields_of
from .text.language import language_of_environment


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer(Recommendation):
    """The result of `advise()`. At the prompt and printed it is the answer of the command line; in a notebook, that of
    the report. The figures are those of the recommended plan, as in `PlanEstimate`; with `sharding="fsdp"`, those of
    plain PyTorch's plan if it alone fits; None if nothing fits.

        >>> answer.fits, answer.strategy, answer.tokens_per_second
        >>> answer.candidates, answer.changes, answer.reasons   # all plans; other GPUs and options; why this plan
        >>> answer.to_dict(), answer.save("ds_config.json")
    """

    @classmethod
    def of(cls, found: Recommendation) -> Answer:
        return cls(**fields_of(found, type(found)))

    def __repr__(self) -> str:
        # Imported here, as below: most programs read the figures alone.
        from .render.deliver import printed_text

        return printed_text(self._document())

    def _repr_html_(self) -> str:
        """Return the answer for a notebook; IPython calls it."""
        from .document.translation import translated
        from .html_report.notebook import notebook_html

        return notebook_html(translated(self._document(), language_of_environment()))

    def _document(self) -> Document:
        from .render.answer import answer_document

        if not self.files:
            return answer_document(self, is_written=False)
        return answer_document(self, self.files[-1])

    def to_dict(self, *, all_candidates: bool = False) -> dict[str, Any]:
        """Return the answer as the object that `--json` prints.

        `deepspeed_estimate` is None unless `advise()` was asked for it.

        all_candidates: include every predicted plan, as `--all` does, for example for a table:
        `pandas.DataFrame(answer.to_dict(all_candidates=True)["candidates"])`.
        """
        from .answer.advice import build_advice

        found: dict[str, Any] = to_json(build_advice(self, all_candidates=all_candidates))
        return found

    def save(self, path: Path | str = CONFIG_NAME, *, force: bool = False) -> Path:
        """Write `ds_config` to a file, as the command line does, and return its path. `files` then has it, and the
        answer's commands name it.

        Raises `DsAdviseError` if there is no configuration, or if another file exists there and `force` is False.
        """
        config, file = self.ds_config, Path(path)
        if config is None:
            why = f"plain PyTorch ({self.strategy}) has none" if self.fits else "no plan fits"
            raise ConfigFileError("there is no configuration to save", why=why, fix="check `answer.fits` first")
        write_config(config, file, force=force, remedies=ARGUMENTS)
        # The answer is frozen for its reader: only what is done with it changes.
        object.__setattr__(self, "files", (*(path for path in self.files if path != str(file)), str(file)))
        return file

    @cached_property
    def _best(self) -> PlanEstimate | None:
        return PlanEstimate.of(self.taken, self.question) if self.taken else None

    @property
    def strategy(self) -> Strategy | PlainPyTorch | None:
        """Name of the strategy, such as "zero2-offload"."""
        return self._best.strategy if self._best else None

    @property
    def micro_batch_size(self) -> int | None:
        """Samples per GPU and forward pass."""
        return self._best.micro_batch_size if self._best else None

    @property
    def gradient_accumulation_steps(self) -> int | None:
        """Micro batches per optimizer step."""
        return self._best.gradient_accumulation_steps if self._best else None

    @property
    def gradient_checkpointing(self) -> bool | None:
        """Whether layers are recomputed in the backward pass."""
        return self._best.gradient_checkpointing if self._best else None

    @property
    def device_bytes_per_gpu(self) -> int | None:
        """Bytes of GPU memory, with the CUDA context and NCCL."""
        return self._best.device_bytes_per_gpu if self._best else None

    @property
    def host_bytes_per_node(self) -> int | None:
        """Bytes of host RAM."""
        return self._best.host_bytes_per_node if self._best else None

    @property
    def assumed_host_bytes(self) -> int | None:
        """Bytes of host RAM per node that `fits` assumes, because the amount is unknown and the plan needs more than
        such a node usually has; 0 if nothing is assumed."""
        return self._best.assumed_host_bytes if self._best else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all GPUs per second (samples for a model without tokens)."""
        return self._best.tokens_per_second if self._best else None

    @property
    def tokens_per_second_low(self) -> float | None:
        """Lower end of the interval that contains four of five measured speeds."""
        return self._best.tokens_per_second_low if self._best else None

    @property
    def tokens_per_second_high(self) -> float | None:
        """Upper end of the interval."""
        return self._best.tokens_per_second_high if self._best else None

    @property
    def ds_config(self) -> dict[str, Any] | None:
        """DeepSpeed's configuration, as the command line writes it: with the record of its question. The Trainer
        fills in its "auto"; with `framework="deepspeed"` it has numbers, for `deepspeed.initialize`."""
        return written_config(self, self.recommended) if self.recommended else None
