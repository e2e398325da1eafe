"""`python -m tenure`."""

from tenure.cli.main import main

main()
