"""Smaller forms of inputs for a slow link: encoded by the sender, decoded by the receiver.

No sockets. An encoding travels as text with all that is needed to decode it, such as
`jpeg;layout=NCHW;scale=0.00392157;offset=0.0`. So the receiver needs to know the model's signature,
but not what the model's owner allows. Inputs are made smaller only if the owner allows it, and only
at the box that sends them.
"""
