"""What plans lose when other rows become hot than those that they were made for."""
