"""The dry run: the installed DeepSpeed's real engine and real model code, as one rank of N, on a simulated GPU."""
