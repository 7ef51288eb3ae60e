"""`python -m pluralis` is the `pluralis` command."""

from pluralis.cli import main

main()
