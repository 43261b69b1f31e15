"""What policies are made of: a part is a rule or a view that one or several of them use."""
