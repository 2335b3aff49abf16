"""Engines compute attention for logits in closed form. ``base.py`` defines the interface, ``catalogue.py`` lists
them."""
