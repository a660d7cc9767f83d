"""Logs and downloaded data sets, read part by part and prepared as folders that workloads read."""
