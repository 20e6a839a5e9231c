"""python -m mlpot: the command line."""

from mlpot.cli import main

main()
