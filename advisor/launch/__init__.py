"""The full training, started, watched and ended: `launch`."""
