"""What the library is compared with: other methods, each with its accounting done right."""
