"""One construct per capability, composed by the stacks."""
