"""Starting a program that talks to the endpoint: its environment, its temporary settings, and a server if none runs."""
