"""Read what training scripts print: the formats of known frameworks, and what metric expressions find in a line."""
