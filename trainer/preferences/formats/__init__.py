"""Row formats: from a row to a preference, and back."""
