"""What the commands do, as functions of Python: a command is flags, one of these calls, and what is shown."""
