"""A package that nobody is to import; it says so where somebody does."""

raise RuntimeError("it got through: a package was imported to look for a module in it")
