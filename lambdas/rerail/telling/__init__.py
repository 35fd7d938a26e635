"""One notice, told to each reader in its own form; nothing is known here but the notice and its links."""
