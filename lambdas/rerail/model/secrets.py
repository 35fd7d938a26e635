"""Hide text that looks like a secret: anyone who has a report's link can read the report."""

import re

HIDDEN = "[hidden]"
# The first group is kept. The lengths are bounded, so that any line can be searched quickly.
_SECRET_PATTERNS = (
    re.compile(r"(\b(?:AKIA|ASIA))[A-Z0-9]{16}\b"),
    re.compile(r"(\b(?:hf|ghp|gho|ghs|ghu|github_pat|glpat|sk|pk|xox[abeprs])[_-])[A-Za-z0-9_-]{16,400}"),
    re.compile(r"(\beyJ)[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{2,2000}\.[A-Za-z0-9_-]{2,2000}"),
    re.compile(r"(X-Amz-(?:Signature|Security-Token|Credential)=)[^&\s\"']{1,2000}"),
    re.compile(r"(\bbearer\s)[A-Za-z0-9._~+/=-]{12,2000}", re.IGNORECASE),
    re.compile(r"(://[^/\s:@]{0,80}:)[^/\s@]{1,200}(?=@)"),
    re.compile(
        r"(\b[\w-]{0,40}(?:passwor[dt]|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|[a-z]_token|[a-z]-token)"
        r"[\w-]{0,20}[\"']?\s?[=:]\s?[\"']?)[^\s\"',;]{6,400}",
        re.IGNORECASE,
    ),
)


def redact_patterns(text: str) -> str:
    """Return the text with everything hidden that has the form of a secret."""
    for pattern in _SECRET_PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text
