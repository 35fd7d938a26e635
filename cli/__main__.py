"""`python -m cli`: the same as `rerail`, for where the command is not on the PATH."""

from cli.main import app

if __name__ == "__main__":
    app(prog_name="rerail")
