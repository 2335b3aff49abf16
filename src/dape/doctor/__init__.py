"""What is here, what is missing, and whether it computes rightly: sections of facts, each made by its own function.

``run.py`` has the list of them; to add one, write a function that returns a :class:`dape.doctor.section.Section`.
"""
