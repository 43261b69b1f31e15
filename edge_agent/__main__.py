"""`python -m edge_agent` is the command `edge_agent`."""

from edge_agent.main import main

main()
