"""Turning plans into numbers: on real ranks, or by the cost model."""
