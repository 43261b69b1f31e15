"""Smaller forms of inputs on a slow link: made by who sends, undone by who receives. No sockets.

An encoding has a name, and what it takes to undo it goes along with it as text, such as
`jpeg;layout=NCHW;scale=0.00392157;offset=0.0`: the receiver has to know the model's signature, and
nothing of what the model's owner allows. Only the owner's word lets an input be made smaller, and
only at the box that sends it.
"""
