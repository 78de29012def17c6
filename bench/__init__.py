"""Benchmarks: what colony does in a second, beside what people use today."""
