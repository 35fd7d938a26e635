"""One notice in the form of each receiver, from the notice and its links alone."""
