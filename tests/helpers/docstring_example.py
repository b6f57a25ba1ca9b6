"""Runs examples in docstrings that need files.

`test_docstring_examples` skips their lines, which are marked `+SKIP`.
"""

import doctest
import sys


def run_example(documented):
    """Runs all lines of an example in the current directory.

    Args:
        documented: A function or class with an example in its docstring.
    """
    module = vars(sys.modules[documented.__module__])
    (test,) = doctest.DocTestFinder(recurse=False).find(
        documented, globs=dict(module)
    )
    for example in test.examples:
        example.options.pop(doctest.SKIP, None)
    failed, tried = doctest.DocTestRunner().run(test)
    assert tried and not failed
