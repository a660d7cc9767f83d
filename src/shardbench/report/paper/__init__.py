"""Tables and figures as files for a paper: LaTeX, PDF and SVG."""
