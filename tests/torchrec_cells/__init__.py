"""The support table of TorchRec: every cell is a case that two gloo ranks run (summed up in ``docs/use_a_plan.md``).

``models`` has what is trained, ``training`` what a case does on a rank, ``cases`` lists them, ``ranks`` starts and
watches the two ranks, and ``python -m torchrec_cells`` writes the table.
"""
