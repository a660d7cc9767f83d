"""What the cost model predicted, held against what ranks measured."""
