"""Settings that scripts write, and that nothing reads."""
