"""One turn of the supervisor: observe, decide, record, act."""
