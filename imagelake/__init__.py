"""imagelake: from mixed image-text sources to a text-to-image pre-training corpus."""

__version__ = "0.1.0"
