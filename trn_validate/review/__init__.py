"""What a reviewer receives: the bundle, the report, and how both are verified."""
