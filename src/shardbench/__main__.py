"""``python -m shardbench`` is the command ``shardbench``."""

from shardbench.cli.main import main

if __name__ == "__main__":
    main()
