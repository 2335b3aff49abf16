"""Conformance vectors, and the comparison of anybody's implementation with them.

``case``      what one vector is: inputs, parameters, logits, gradients
``recipes``   which cases an encoding has
``make``      the reference computes them; ``vectors/`` holds the result
``files``     reading and writing them
``subject``   the implementation under test: how it is found, built, given parameters and called
``compare``   how far off it is, and where
``mistakes``  which known mistake it looks like
``verdict``   the whole answer
"""
