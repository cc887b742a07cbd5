"""How workers and servers talk: messages, the memory they share on one host, both ends of a connection."""
