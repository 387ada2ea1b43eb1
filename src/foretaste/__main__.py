"""``python -m foretaste``: the command line, where its script is not on the path."""

from foretaste.cli import main

if __name__ == "__main__":
    main()
