"""The words of the field as types: tables, machines, problems, plans, strategies."""
