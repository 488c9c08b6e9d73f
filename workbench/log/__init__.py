"""What libraries print."""
