"""All measurements that need a GPU, made by one command within a given time.

python -m benchmarks.gpu --minutes 20 --out DIR
python -m benchmarks.gpu.tables DIR
python -m benchmarks.gpu.wheels DIR
"""
