"""A run as the screen sees it: trained here, trained by another process, or ended."""
