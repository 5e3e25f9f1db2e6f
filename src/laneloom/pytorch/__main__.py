"""`python -m laneloom.pytorch SCRIPT [ARGUMENTS]`: runs a script patched, and prints what was routed."""

from __future__ import annotations

import runpy
import sys

from .patch import patched


def main() -> None:
    """Run the script named by the first argument as __main__, in a `patched` context."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m laneloom.pytorch SCRIPT [ARGUMENTS]")
    try:  # run_path's own error has its inside with it
        open(sys.argv[1], "rb").close()
    except IsADirectoryError:
        pass  # one with a __main__.py runs too
    except OSError as error:
        raise SystemExit(f"laneloom: cannot read {sys.argv[1]}: {error.strerror}") from None
    del sys.argv[0]
    context = patched()
    try:
        with context:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        print(context.report(), file=sys.stderr)


if __name__ == "__main__":
    main()
