"""The folder that stands first in the PYTHONPATH of an observed command."""
