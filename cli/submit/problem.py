"""What is wrong with a submission, and what to do about it."""


class Problem(Exception):
    """A problem that the researcher can fix; `remedy` says how."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy
