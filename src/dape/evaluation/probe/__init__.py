"""Can a model fetch what it has read, also beyond its training length? In text, and in made-up tokens it learns from."""
