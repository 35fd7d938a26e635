"""Remote functions of Python programs: submitted and observed with what `rerail submit` is made of."""
