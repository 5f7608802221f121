"""Tables and figures on accounting and reporting."""
