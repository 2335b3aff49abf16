"""What computes logits in closed form: ``base.py`` says what an engine is, ``catalogue.py`` names them."""
