"""Workloads: each module turns its parameters into a ``shardbench.workloads.workload.Workload``."""

if __name__ != "shardbench.datasets":
    raise ImportError("import shardbench.datasets: 'datasets' at the top level is another project's name")
