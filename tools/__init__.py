"""Programs of the Makefile: packages, test suites, audits, and parts of the site."""
