"""Drawings for the page as inline SVG: sized in its own units, coloured by classes of the page's style."""
