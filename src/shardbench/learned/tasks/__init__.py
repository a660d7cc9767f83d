"""The papers' placement tasks: pools, features, cost oracles, bounds and the best found."""
