"""Sources for `make demo`: the pictures that scikit-image ships, with planted variants whose fate is known."""
