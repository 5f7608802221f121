"""Tables and figures of Yang2024 and Ying2024."""
