"""Plain functions from bytes to facts, hashes and pixels. They import nothing else of imagelake."""
