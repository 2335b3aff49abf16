"""Can a model fetch what it has read, also beyond its training length? In text, and in tokens made up for it."""
