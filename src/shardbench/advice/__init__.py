"""What an engineer asks: the best plan, also under constraints; plans for a race; what another day costs."""
