"""From prompts to experience: responses by continuous batching, sampling, the texts of tokens."""
