"""The `rerail` command: Typer for the words, Rich for the screen."""
