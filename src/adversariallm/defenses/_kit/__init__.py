"""What defenses share; a defense imports the modules here, and this package imports no defense."""
