"""Networks in plain torch: generators and their base class."""
