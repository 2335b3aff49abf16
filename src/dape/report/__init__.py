"""Tables, figures and sentences made from result rows, without a model and without torch.

``tables`` and ``summary`` load nothing heavy. ``figures`` loads matplotlib: import it only where something is drawn.
"""
