"""This machine's own speeds: products, memory, links, collectives, the optimizer on the host, NVMe."""
