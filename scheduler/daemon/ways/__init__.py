"""What is known of the way to a target beyond this box, whatever protocol it speaks. No sockets."""
