"""What clouds say of a machine's end: a child asks their metadata services, and the supervisor hears its words."""
