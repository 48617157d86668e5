"""The default training scripts, which users also get as files, and their command lines."""
