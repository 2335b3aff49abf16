"""What happens to each row of a transformer between its matrix products, in one pass over memory instead of several."""
