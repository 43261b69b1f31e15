"""The parts that policies are made of: rules and views used by one or more of them."""
