"""Both Python clients and their transport; `scheduler` exports what callers use."""
