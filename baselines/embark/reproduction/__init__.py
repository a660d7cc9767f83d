"""The paper's claim of throughput: its models drawn to their totals, on a simulated cluster."""
