"""Tables made of records: for files, for people, for a terminal."""
