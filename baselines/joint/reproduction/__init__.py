"""Studies of the joint planner: beside all other strategies, without some moves, by budget, with wrong profiles."""
