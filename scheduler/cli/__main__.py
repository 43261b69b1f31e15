"""`python -m scheduler.cli` is `laxity`."""

from scheduler.cli.main import main

if __name__ == "__main__":
    main()
