"""What is often done with graphs."""
