"""Knowledge about the way to a target beyond this box, for any protocol. No sockets."""
