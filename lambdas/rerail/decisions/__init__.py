"""Pure decisions: one module per signal, rule or remedy."""
