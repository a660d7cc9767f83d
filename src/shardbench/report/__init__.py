"""Tables and pages made of records."""
