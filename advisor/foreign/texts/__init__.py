"""Files of options as text: YAML, JSON and shell scripts, read as values, changed in few characters."""
