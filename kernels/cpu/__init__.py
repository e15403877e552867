"""Whole steps on the CPU in one native call: C++20 behind a plain C interface.

`build`    compiles the sources once for each instruction set and caches the result
`binding`  the C interface as numpy sees it

Loads neither torch nor anything else beyond numpy.
"""
