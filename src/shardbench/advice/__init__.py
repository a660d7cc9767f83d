"""What an engineer asks: the best plan, also under constraints; races of plans; what another day costs."""
