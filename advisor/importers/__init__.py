"""Trainings as files and command lines of other tools describe them: readers, which `launch` uses too; memory, time and
errors of the run; and a better one in the tool's format."""
