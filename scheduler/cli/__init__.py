"""The command `laxity`: one file per subcommand, and shared parts."""
