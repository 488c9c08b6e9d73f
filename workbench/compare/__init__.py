"""Runs side by side: what differs between them. Reads no files and knows no screen."""
