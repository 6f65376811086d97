"""`python -m bertkit`: what torchrun starts."""

from bertkit.cli import main

if __name__ == "__main__":
    main()
