"""The mathematics of the book and its register of claims: all that a chapter imports."""

__version__ = "0.1.0"
