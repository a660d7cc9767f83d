"""Running a plan for real: lowering to TorchRec, ranks, clocks."""
