"""Facts of a DeepSpeed version from its sources, parsed and not imported: importing DeepSpeed imports torch, which
takes seconds.

Two kinds of code read a configuration. Blocks with a pydantic class (`DeepSpeedConfigModel`) have typed fields and
refuse other keys. Everything else is looked up by name (`get_scalar_param(param_dict, KEY, DEFAULT)`,
`param_dict[KEY]`), and a key that nothing looks up is ignored in silence.
"""

from .read import read_facts

__all__ = ["read_facts"]
