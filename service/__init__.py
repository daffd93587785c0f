"""The HTTP service: what is live, how a request is ranked, how an index is rebuilt while answering."""

__version__ = "0.1.0"
