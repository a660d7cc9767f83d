"""Cards: source, licence and asserted numbers of each data set."""
