"""Bad input for every parser that meets the outside: what is read, from which samples, and how these are changed."""
