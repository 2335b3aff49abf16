"""Tables, figures and words made from result rows, at any time and without a model. No torch here.

``tables`` and ``summary`` load nothing heavy; ``figures`` loads matplotlib and is imported by what draws.
"""
