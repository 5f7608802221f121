"""Tables and figures on adaptation."""
