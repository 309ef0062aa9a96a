"""Source files as trees, for tests that read the package's own code."""

import ast
import gc


def parse(text: str) -> ast.Module:
    """The tree of a source text. Without garbage collection meanwhile: JAX runs Python code in it, and where another
    thread parses at that moment, Python 3.11 raises SystemError (its AST constructor counts depths per process)."""
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()
