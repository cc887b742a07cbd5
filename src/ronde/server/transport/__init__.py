"""Transport between workers and servers: messages, shared memory, client, service."""
