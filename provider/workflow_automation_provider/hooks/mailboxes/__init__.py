"""The stores that can hold mailboxes, each in a file of its own."""
