"""Characters to ids in megabytes of text a second: `python benchmarks/tokenize.py [--quick|--smoke] [--json]`.

The work is in _tokenizing.py. This file bears a standard module's name, and Python finds a script's own folder first:
any script here that imports the standard `tokenize` (inspect does) gets this file, which then steps aside for it.
"""

if __name__ == "tokenize":
    import os
    import sys
    from importlib.util import module_from_spec, spec_from_file_location

    found = spec_from_file_location("tokenize", os.path.join(os.path.dirname(os.__file__), "tokenize.py"))  # noqa: PTH118, PTH120
    assert found is not None and found.loader is not None
    sys.modules["tokenize"] = module_from_spec(found)
    found.loader.exec_module(sys.modules["tokenize"])
elif __name__ == "__main__":
    from _tokenizing import main

    main()
