"""Both Python clients, and what carries their requests; `scheduler` exports what callers use."""
