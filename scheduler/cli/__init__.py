"""The command `laxity`: one file per subcommand, and what they share."""
