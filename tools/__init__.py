"""What the Makefile runs: packages, and the test suites."""
