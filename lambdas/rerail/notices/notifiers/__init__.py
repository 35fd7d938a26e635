"""The format of a notice for each receiver, made from the notice and its links alone."""
