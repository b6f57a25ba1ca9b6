"""What a record holds, and how text becomes one: tokenization and masking."""
