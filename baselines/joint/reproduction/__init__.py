"""How good the joint planner is: beside all other strategies, without some moves, by budget, with wrong profiles."""
